"""Generalised advantages of calls, whatever windows they are trained in."""

from pathlib import Path

import numpy as np
import pytest

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.critic import ValueTargets, compute_gae
from lightningbus.learner.training.tensors import Segments
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from tests.factories import model_call


def sequences_of(max_tokens: int) -> list[TrainSequence]:
    """A call of 2 + 12 tokens and a short one, each a sequence of its own, the long one in windows if it must be."""
    calls = [model_call(0, [1, 2], list(range(3, 15))), model_call(1, [9], [8, 7])]
    config = SequenceConfig(mode="transition", max_tokens=max_tokens, overlong="split")
    return build_sequences("r", build_transitions(calls), config)[0]


def targets_of(sequences: list[TrainSequence], gamma: float = 1.0, lam: float = 1.0) -> ValueTargets:
    """Advantage 1 for each call; the value of a token is its id over ten, where ``lam`` says that values count."""
    settings = LearnerSettings.model_validate(
        {"model_path": Path("m"), "algorithm": {"adv_estimator": "gae", "gamma": gamma, "lam": lam}}
    )
    ones = [sequence.trained.astype(np.float32) for sequence in sequences]
    values = [np.float32(0.1 if lam < 1 else 0) * sequence.token_ids.astype(np.float32) for sequence in sequences]
    return compute_gae(Segments(sequences), ones, values, settings)


def by_token(sequences: list[TrainSequence], arrays: list[np.ndarray]) -> list[float]:
    """Of the long call's tokens, in order."""
    return [
        float(value)
        for sequence, array in zip(sequences, arrays, strict=True)
        for value in array[sequence.call_index == 0]
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 1.0), (0.9, 0.8)])
def test_a_call_in_windows_has_the_value_targets_of_the_whole_call(gamma: float, lam: float) -> None:
    whole, windows = sequences_of(100), sequences_of(8)
    assert len(whole) == 2 and len(windows) == 4
    expected, actual = targets_of(whole, gamma, lam), targets_of(windows, gamma, lam)
    for name in ("returns", "advantages"):
        first, second = by_token(whole, getattr(expected, name)), by_token(windows, getattr(actual, name))
        assert second == pytest.approx(first, rel=1e-5)
    if gamma == 1:
        assert by_token(windows, actual.returns) == [1.0] * 12
