"""The model's tokenizer, to tell whether two token sequences say the same."""

from collections.abc import Sequence
from pathlib import Path

from learner.forest import Decode


def decoder(model_path: Path) -> Decode | None:
    """Token ids to text, special tokens included; None for a model without a ``tokenizer.json``."""
    file = model_path / "tokenizer.json"
    if not file.exists():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
