"""Contenders of the learner's benchmark do the same work: their gradients have the same norm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learner.contenders import find_contenders, split_by_length
from benchmarks.learner.workload import SIZES, Row, count_tokens, draw_rows, make_model, score_rows

SIZE = SIZES["small"]


@pytest.mark.parametrize("group_size", [1, 3])
def test_contenders_compute_the_same_gradient(tmp_path: Path, group_size: int) -> None:
    """Of rows with prompts of their own, and of rows in groups."""
    grouped = replace(SIZE, group_size=group_size, prompt_share=0.6, spread=0.0)
    size = grouped if group_size > 1 else SIZE
    make_model(size, tmp_path)
    rows = score_rows(draw_rows(size), tmp_path)
    contenders: dict[str, Any] = find_contenders(size)
    norms = {name: make(tmp_path, size, rows).step() for name, make in contenders.items()}
    expected = norms.pop("transformers")
    assert expected > 0
    for name, norm in norms.items():
        assert norm == pytest.approx(expected, rel=1e-4), name


def test_padded_micro_batches_hold_every_row_once_and_stay_within_the_bound() -> None:
    rows = draw_rows(SIZE)
    parts = list(split_by_length(rows, SIZE.max_tokens))
    assert sorted(id(row) for part in parts for row in part) == sorted(map(id, rows))
    assert len(parts) > 1
    for part in parts:
        lengths = [len(row.token_ids) for row in part]
        assert lengths == sorted(lengths) and len(part) * lengths[-1] <= SIZE.max_tokens


def test_rows_are_the_same_every_time_and_of_many_lengths() -> None:
    first, second = (draw_rows(SIZES["standard"]) for _ in range(2))
    assert all(np.array_equal(row.token_ids, other.token_ids) for row, other in zip(first, second, strict=True))
    lengths = [len(row.token_ids) for row in first]
    assert max(lengths) > 5 * min(lengths) and count_tokens(first) == sum(lengths)
    assert all(isinstance(row, Row) and 0 < len(row.prompt) < len(row.response) for row in first)
