"""The model's tokenizer, for comparing token sequences by their text, and the size of its vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from lightningbus.learner.settings.model_config import read_text_config
from lightningbus.learner.transitions.prefix_tree import Detokenize


def load_detokenizer(model_path: Path) -> Detokenize | None:
    """Load the conversion of token ids to text, special tokens included; None without a ``tokenizer.json``."""
    file = model_path / "tokenizer.json"
    if not file.exists():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode


def find_vocabulary_size(model_path: Path) -> int | None:
    """Read the number of the model's tokens; None if its ``config.json`` has none."""
    count = read_text_config(model_path).get("vocab_size")
    return int(count) if count is not None else None
