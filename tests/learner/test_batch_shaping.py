"""Rewards and warnings of a batch: overlong answers, truncated sampling, step rewards that nobody uses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.batching.credit import CREDIT_FUNCTIONS
from lightningbus.learner.batching.overlong import find_penalty
from lightningbus.learner.findings import find_problems
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.algorithm import OverlongBufferSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.truncation import find_truncations
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for


def build(*members: Rollout, **changes: Any) -> Batch:
    settings = LearnerSettings.model_validate({"model_path": Path("m"), **changes})
    return builder_for(settings).build([group("a", *members)], 0)


def answer(sample: int, reward: float, tokens: int = 2, **fields: Any) -> Rollout:
    """A rollout of one call."""
    call = model_call(0, [1, 2], list(range(3, 3 + tokens)), **fields)
    return rollout("a", sample, reward, calls=[call])


def test_a_cut_answer_is_trained_unless_filtering_is_on() -> None:
    """Its reward counts in its group either way."""
    members = [answer(0, 1.0), answer(1, 0.0, finish_reason="length"), answer(2, 0.0, finish_reason="stop")]
    plain, filtered = build(*members), build(*members, algorithm={"overlong_filtering": True})
    assert [use.exclusion_reason for use in plain.dispositions] == ["", "", ""]
    assert [use.exclusion_reason for use in filtered.dispositions] == ["", "overlong", ""]
    assert filtered.dispositions[0].advantage == plain.dispositions[0].advantage


def test_the_answer_of_another_model_does_not_exclude_a_rollout() -> None:
    calls = [model_call(0, [1], [2]), model_call(1, [3], [4], model="judge", finish_reason="length")]
    members = [rollout("a", 0, 1.0, calls=calls), answer(1, 0.0)]
    assert build(*members, algorithm={"overlong_filtering": True}).dispositions[0].trained


@pytest.mark.parametrize(("tokens", "expected"), [(6, 0.0), (8, -1.0), (9, -1.5), (10, -2.0), (12, -2.0)])
def test_the_soft_punishment_is_dapos(tokens: int, expected: float) -> None:
    """arXiv:2503.14476, equation 13, times the factor: L_max 10, L_buffer 4."""
    buffer = OverlongBufferSettings(max_response_length=10, len=4, penalty_factor=2.0)
    assert find_penalty(answer(0, 1.0, tokens), "policy", buffer) == pytest.approx(expected)


def test_the_punishment_goes_into_the_advantage_and_not_into_the_recorded_reward() -> None:
    members = [answer(0, 1.0, 2), answer(1, 1.0, 10), answer(2, 0.0, 2)]
    buffer = {"max_response_length": 10, "len": 4}
    batch = build(*members, algorithm={"overlong_buffer": buffer, "norm_adv_by_std_in_grpo": False})
    shaped = np.array([1.0, 0.0, 0.0])
    assert [use.advantage for use in batch.dispositions] == pytest.approx(list(shaped - shaped.mean()))
    assert [use.reward for use in batch.dispositions] == [1.0, 1.0, 0.0]
    assert batch.metrics["overlong/penalty"] == pytest.approx(-1 / 3)
    with pytest.raises(ValueError, match=r"overlong_buffer.len \(11\) is more than max_response_length \(10\)"):
        OverlongBufferSettings(max_response_length=10, len=11)


@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0, "max_tokens": 9, "stop": ["x"]}, []),
        ({"top_p": 0.9, "top_k": 20, "min_p": 0.1}, ["top_p", "top_k", "min_p"]),
        ({"repetition_penalty": 1.1, "presence_penalty": 0.0}, ["repetition_penalty"]),
        ({"logit_bias": {"5": -100}, "bad_words": []}, ["logit_bias"]),
        ({"response_format": {"type": "json_object"}}, ["response_format"]),
        ({"response_format": {"type": "text"}, "tool_choice": "auto"}, []),
        ({"tool_choice": "required"}, ["tool_choice"]),
    ],
)
def test_sampling_from_another_distribution_is_told_from_a_temperature(sampling: Any, names: list[str]) -> None:
    assert find_truncations(sampling) == names


def test_truncated_sampling_is_a_metric_and_a_warning() -> None:
    members = [answer(0, 1.0, 6, sampling_params={"top_k": 20}), answer(1, 0.0, 2)]
    metrics = build(*members).metrics
    assert metrics["truncated_share"] == 0.75 and metrics["truncated/top_k"] == 1
    assert find_problems([metrics], (), 10) == {"sampling_constrained": {"share": 0.75, "names": "top_k"}}
    assert not find_problems([build(answer(0, 1.0), answer(1, 0.0)).metrics], (), 10)


def test_step_rewards_that_a_credit_method_ignores_are_told() -> None:
    first = rollout("a", 0, 1.0, rewards=[0.5, 0.0])
    metrics = build(first, rollout("a", 1, 0.0)).metrics
    assert find_problems([metrics], (), 10) == {"rewards_ignored": {"num_calls": 1.0}}
    used = build(first, rollout("a", 1, 0.0), credit="reward_to_go").metrics
    assert not find_problems([used], (), 10)


def test_a_call_is_read_with_what_it_was_sampled_by() -> None:
    """Logit bias and structured output are recorded with the call."""
    from lightningbus.runners.protocol.answers.choice import recorded_sampling
    from lightningbus.runners.protocol.request import ChatRequest

    body = {"model": "policy", "messages": [], "logit_bias": {"5": 1}, "response_format": {"type": "json_object"}}
    recorded = recorded_sampling(ChatRequest.parse(body, chat=True), {"temperature": 1.0})
    call = replace(model_call(0, [1], [2]), sampling_params=recorded)
    assert find_truncations(call.sampling_params) == ["logit_bias", "response_format"]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg"])
@pytest.mark.parametrize("method", sorted(CREDIT_FUNCTIONS))
def test_a_group_of_equal_rewards_has_no_advantage_and_no_signal(method: str, estimator: str) -> None:
    """Eight times 0.1, by whatever sum: no call has an advantage, and the digest is the same."""
    calls = [model_call(0, [1, 2], [3, 4]), model_call(1, [1, 2, 3, 4, 5], [6])]
    changes = {"credit": {"method": method}, "algorithm": {"adv_estimator": estimator}}
    sums = ([0.1] * 8, [0.3 - 0.2, 0.1] * 4)
    batches = [
        build(*(rollout("a", number, reward, calls=calls) for number, reward in enumerate(rewards)), **changes)
        for rewards in sums
    ]
    assert {value for batch in batches for value in batch.advantages.values()} == {0.0}
    assert [batch.metrics["groups/without_signal"] for batch in batches] == [1.0, 1.0]
    assert batches[0].compute_sha256() == batches[1].compute_sha256()


def test_the_error_of_a_sum_changes_no_digest() -> None:
    """A reward at the mean of its group has advantage 0, or its error: 0.1 + 0.2 counts as 0.3."""
    exact, summed = (build(*(answer(n, r) for n, r in enumerate([0.0, 0.6, value]))) for value in (0.3, 0.1 + 0.2))
    assert exact.compute_sha256() == summed.compute_sha256()
    assert exact.metrics["groups/without_signal"] == 0.0
