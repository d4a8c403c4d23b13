"""Models of real shapes with random weights, and tokenizers for them, made on the spot: nothing is downloaded."""

import math
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.gpu.sizes import Shape

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "small_model" / "model.py"
INITIALIZER_RANGE = 0.02
"""Standard deviation of the weights: transformers' default for both families."""
QWEN_END = "<|endoftext|>"
"""What transformers' tokenizer of Qwen2 adds behind the vocabulary unless it is in it."""
COMPLETE = "tokenizer.json"
"""The file that is written last."""


def make_model(shape: Shape, dtype: str, place: Path) -> Path:
    """The directory of a model below ``place``; one that is there already is used again."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    path = place / f"{shape.name.replace(' ', '-')}-{dtype}"
    if (path / COMPLETE).exists():
        return path
    vocabulary, hidden = shape.fields["vocab_size"], shape.fields["hidden_size"]
    tokenizer = make_tokenizer(vocabulary, shape.fields["max_position_embeddings"])
    kind: Any = {"qwen2": Qwen2Config, "llama": LlamaConfig}[shape.family]
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = kind(**shape.fields, **ids, initializer_range=INITIALIZER_RANGE, dtype=dtype)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        model.model.norm.weight.fill_(final_norm(vocabulary, hidden))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def final_norm(vocabulary: int, hidden: int) -> float:
    """Weight of the last norm for which random logits have an entropy of a quarter to a half of ln(vocabulary). Pure.

    With weight 1 a random model samples nearly uniformly, which tells nothing about probabilities. Logits that are
    normal with variance s² have the entropy ln(vocabulary) - s²/2 in the limit of many, as the random energy model
    above its transition (Derrida, Phys. Rev. B 24, 2613), and somewhat more of fewer. Here s² is 1.5 ln(vocabulary).
    """
    deviation = math.sqrt(1.5 * math.log(vocabulary))
    return deviation / (INITIALIZER_RANGE * math.sqrt(hidden))


def make_tokenizer(vocabulary: int, context: int) -> Any:
    """A byte-level tokenizer with a text for each id of the model, and the chat template of the small models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    small = _load_example()
    special = [small.PAD, small.END, *small.ROLES, QWEN_END]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), small.CALL, small.CALLED]
    tokens += [f"w{number}" for number in range(vocabulary - len(tokens))]
    backend = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    return small.chatting(backend, context)


def _load_example() -> ModuleType:
    spec = util.spec_from_file_location("small_model", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
