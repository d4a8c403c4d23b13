"""Token sequences that learner, reference and engine score."""

from pathlib import Path

import numpy as np

from lightningbus.learner.transitions.sequences import TrainSequence, scored_sequence

LENGTHS = (40, 3, 2, 90, 17, 61)
"""Tokens of each sequence: long beside short ones, so that packed rows have neighbours of other lengths."""
TEXT = """The carriage left the harbour before noon, and nobody on board knew how far the storm had travelled inland.
"Seventeen plus twenty-six is forty-three," said the clerk; then she counted the coins again: 12, 7, 0.5 and 1,048,576.
def merge(left, right):
    return sorted(left + right, key=lambda item: item[0]) if left else right
Im Winter friert der See zu. En hiver, le lac gèle. 冬には湖が凍る。 {"name": "search", "arguments": {"query": "ice"}}
A list has three parts: first, what is known; second, what is assumed; third, what follows from both of them together.
"""
"""Prose, numbers, code, JSON and other languages: tokens that a model predicts well beside ones it does not."""


def make_probe(model_path: Path, vocabulary_size: int, max_tokens: int) -> list[TrainSequence]:
    """Make sequences of a model's tokens, of `LENGTHS` but at most ``max_tokens``.

    Without a usable tokenizer the tokens are spread over the vocabulary.
    """
    ids = _tokenize(model_path)
    if len(set(ids)) < min(LENGTHS[0], vocabulary_size) or max(ids) >= vocabulary_size:
        ids = [(number * 7919 + 13) % vocabulary_size for number in range(sum(LENGTHS))]
    while len(ids) < sum(LENGTHS):
        ids = ids + ids
    starts = np.cumsum((0, *LENGTHS))
    rows = (ids[start : start + min(length, max_tokens)] for start, length in zip(starts, LENGTHS, strict=False))
    return [scored_sequence(f"probe-{number}", row) for number, row in enumerate(rows)]


def _tokenize(model_path: Path) -> list[int]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        ids = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"]  # no model reads it whole
        return [int(token) for token in ids] or [0]
    except Exception:  # a tokenizer may raise anything; the preflight checks say what is wrong with it
        return [0]
