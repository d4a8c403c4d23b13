"""Conversion of a GGUF file into a model directory: ``python -m lightningbus.run.pretrained.conversion GGUF OUT``."""

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import decoders
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast


def convert(gguf: Path, out: Path) -> None:
    """Write model, tokenizer, chat template and generation settings of a GGUF file as a directory.

    Weights are written as bfloat16: a version of them is published as a small delta. Of SmolLM2-135M-Instruct in Q4_1
    this changes 1e-4 nats of a token, and no most likely token of 269.
    """
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **_unpack_weights()
    )
    model.save_pretrained(out)
    _convert_tokenizer(gguf, model.config).save_pretrained(out)


def _unpack_weights() -> dict[str, Any]:
    """Return the arguments of newer versions of transformers that would else keep weights packed, and not save them."""
    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _convert_tokenizer(gguf: Path, config: PretrainedConfig) -> PreTrainedTokenizerFast:
    """Return the file's tokenizer with the end token of the model; transformers takes the first token for it.

    Its decoder is that of a byte-level BPE: transformers' also replaces a character that is SentencePiece's space.
    """
    read = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read.backend_tokenizer.decoder = decoders.ByteLevel()
    names = {role: read.convert_ids_to_tokens(getattr(config, f"{role}_id")) for role in ("bos_token", "eos_token")}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=read.backend_tokenizer,
        **names,
        pad_token=names["eos_token"],
        unk_token=read.unk_token,
        chat_template=read.chat_template,
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    """Convert by command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    convert(options.gguf, options.out)


if __name__ == "__main__":
    main()
