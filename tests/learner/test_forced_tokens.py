"""Tokens that nobody sampled carry no gradient; small temperatures are those that vLLM samples at."""

from array import array

import numpy as np
import pytest

from lightningbus.learner.transitions.sequences import CONTEXT, SequenceConfig, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.schemas.spans import ModelCall, VersionSpan

TOKENS = [11, 12, 13, 99, 14]
LOGPROBS = [-0.5, -1.0, 0.0, 0.0, -0.25]


def call(**sampling: object) -> ModelCall:
    return ModelCall(
        index=0,
        model="policy",
        node="n",
        finish_reason="stop",
        prompt_ids=array("I", [1, 2]).tobytes(),
        response_ids=array("I", TOKENS).tobytes(),
        logprobs=np.array(LOGPROBS, "<f4").tobytes(),
        weight_versions=(VersionSpan(version=3, start=0, end=len(TOKENS)),),
        sampling_params=sampling,
    )


@pytest.mark.parametrize(("budget", "trained"), [(3, [0, 1, 4]), (None, [0, 1, 2, 3, 4])])
def test_the_end_of_a_thought_that_its_budget_forced_is_context(budget: int | None, trained: list[int]) -> None:
    (transition,) = build_transitions([call(temperature=1.0, thinking_token_budget=budget)])
    ((sequence,), excluded) = build_sequences("r", [transition], SequenceConfig())
    assert not excluded and transition.num_forced == len(TOKENS) - len(trained)
    assert sequence.token_ids.tolist() == [1, 2, *TOKENS]
    assert np.flatnonzero(sequence.call_index != CONTEXT).tolist() == [2 + place for place in trained]


@pytest.mark.parametrize(("requested", "sampled"), [(0.001, 0.01), (0.01, 0.01), (0.7, 0.7), (0, 0)])
def test_a_temperature_is_the_one_that_was_sampled_at(requested: float, sampled: float) -> None:
    (transition,) = build_transitions([call(temperature=requested)])
    assert transition.temperature == sampled
