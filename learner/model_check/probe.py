"""Token sequences that learner, reference and engine score."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from lightningbus.learner.transitions.sequences import TrainSequence, scored_sequence

LENGTHS = (40, 3, 2, 90, 17, 61)
"""Tokens of the first sequences: long beside short ones, so that packed rows have neighbours of other lengths."""
NUM_LONG_TOKENS, LONG = 2000, 500
"""Tokens of the further sequences together, and of each: so many that the errors of rounding have a known mean."""
MAX_LENGTH = 4200
"""Most tokens of a sequence that exceeds a length of the configuration."""
TEXT = """The carriage left the harbour before noon, and nobody on board knew how far the storm had travelled inland.
"Seventeen plus twenty-six is forty-three," said the clerk; then she counted the coins again: 12, 7, 0.5 and 1,048,576.
def merge(left, right):
    return sorted(left + right, key=lambda item: item[0]) if left else right
Im Winter friert der See zu. En hiver, le lac gèle. 冬には湖が凍る。 {"name": "search", "arguments": {"query": "ice"}}
A list has three parts: first, what is known; second, what is assumed; third, what follows from both of them together.
"""
"""Prose, numbers, code, JSON and other languages: tokens that a model predicts well beside ones it does not."""


def make_short_probe(model_path: Path, vocabulary_size: int, max_tokens: int) -> list[TrainSequence]:
    """Make sequences of a model's tokens, of `LENGTHS` but at most ``max_tokens``.

    Without a usable tokenizer the tokens are spread over the vocabulary.
    """
    return _cut(_tokenize(model_path, TEXT, vocabulary_size), [min(length, max_tokens) for length in LENGTHS])


def make_long_probe(
    model_path: Path, vocabulary_size: int, max_tokens: int, lengths: Sequence[int] = ()
) -> list[TrainSequence]:
    """Make sequences of a model's tokens, of at most ``max_tokens`` each: `NUM_LONG_TOKENS` in all, and a longer one.

    The longer one exceeds each of ``lengths`` that rows of ``max_tokens`` exceed, up to `MAX_LENGTH`. The tokens are of
    the text that Python's own help prints, or spread over the vocabulary as in `make_short_probe`.
    """
    length = min(LONG, max_tokens)
    exceeded = [min(named + LENGTHS[0], max_tokens) for named in lengths if length < named < max_tokens]
    sizes = [length] * (-(-NUM_LONG_TOKENS // length)) + [size for size in exceeded if size <= MAX_LENGTH][-1:]
    return make_text_rows(model_path, vocabulary_size, sizes)


def make_text_rows(model_path: Path, vocabulary_size: int, lengths: Sequence[int]) -> list[TrainSequence]:
    """Make sequences of given lengths of the text that Python's own help prints, as tokens of a model."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return _cut(_tokenize(model_path, text[: 6 * sum(lengths)], vocabulary_size), lengths)


def _cut(ids: Sequence[int], lengths: Sequence[int]) -> list[TrainSequence]:
    endless = cycle(ids)
    return [scored_sequence(f"probe-{number}", list(islice(endless, n))) for number, n in enumerate(lengths)]


def _tokenize(model_path: Path, text: str, vocabulary_size: int) -> list[int]:
    ids = _encode(model_path, text)
    if len(set(ids)) < min(LENGTHS[0], vocabulary_size) or max(ids) >= vocabulary_size:
        return [(number * 7919 + 13) % vocabulary_size for number in range(vocabulary_size)]
    return ids


def _encode(model_path: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # no model reads it whole
        return [int(token) for token in ids] or [0]
    except Exception:  # a tokenizer may raise anything; the preflight checks say what is wrong with it
        return [0]
