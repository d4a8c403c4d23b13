"""`ppo_max_token_len_per_gpu` bounds what the model computes at once, padding included, whatever the rows look like."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.sequences import TrainSequence
from tests.learner.conftest import settings_for

LIMIT, LONGEST = 256, 120


def row(number: int, length: int, temperature: float = 1.0) -> TrainSequence:
    """A row of chance tokens, all trained but the first."""
    rng = np.random.default_rng(number)
    calls = np.zeros(length, np.int64)
    calls[0] = -1
    zeros = np.zeros(length, np.int64)
    return TrainSequence(f"r{number}", temperature, rng.integers(1, 64, length), calls, zeros.astype(np.float32), zeros)


def lognormal(count: int) -> list[int]:
    """Many short rows and a long tail."""
    lengths = np.random.default_rng(0).lognormal(2.5, 1.0, count)
    return np.clip(lengths, 2, LONGEST).astype(int).tolist()


def two_humped(count: int) -> list[int]:
    """One row in eight is as long as can be, the others are short."""
    return [LONGEST if number % 8 == 0 else 6 + number % 5 for number in range(count)]


def sizes(trainer: VerlTrainer, rows: Sequence[TrainSequence]) -> tuple[list[int], list[Any]]:
    """Tokens of each forward pass, padding included, and the log-probabilities."""
    seen: list[int] = []

    def look(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        seen.append(named["input_ids"].numel())

    hook = trainer._engine.module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        return seen, trainer.log_probs(rows)
    finally:
        hook.remove()


@pytest.mark.parametrize("lengths", [lognormal, two_humped])
def test_no_micro_batch_has_more_tokens_than_the_bound(
    start: Callable[..., VerlTrainer], lengths: Callable[[int], list[int]]
) -> None:
    """And packed ones are close to it: rows are not padded."""
    rows = [row(number, length, (0.5, 1.0)[number % 2]) for number, length in enumerate(lengths(64))]
    total = sum(len(item.token_ids) for item in rows)
    trainer = start(actor={"ppo_max_token_len_per_gpu": LIMIT})
    seen, packed = sizes(trainer, rows)
    assert max(seen) <= LIMIT and sum(seen) == total and len(seen) < 2 * total / LIMIT + 1
    padding = start(actor={"ppo_max_token_len_per_gpu": LIMIT}, engine={"use_remove_padding": False})
    seen, padded = sizes(padding, rows)
    assert max(seen) <= LIMIT and sum(seen) > total
    for item, other in zip(packed, padded, strict=True):
        np.testing.assert_allclose(item, other, atol=1e-5)


def test_a_bound_that_a_sequence_may_exceed_is_refused(model_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ppo_max_token_len_per_gpu \(128\) must be at least seq_len \(256\)"):
        settings_for(model_path, seq_len=256)
