"""Which number is a rollout's reward."""

from typing import Any

import pytest

from runners.recording import rewards
from schemas.spans import Span


def span(reward: Any, end_ns: int, name: str = "lightningbus.reward") -> Span:
    return Span(trace_id="t", span_id="s", name="x", start_ns=1, end_ns=end_ns, attributes={name: reward})


@pytest.mark.parametrize(
    ("answer", "spans", "expected"),
    [
        ({"value": 1}, [], 1.0),
        ({"value": True}, [], 1.0),
        ({"value": {"reward": 0.5, "text": "x"}}, [], 0.5),
        ({"value": "text", "reward": 0.25}, [span(1.0, 1)], 0.25),
        ({"value": "text"}, [span(0.1, 5), span(0.9, 9), span(0.2, 7)], 0.9),
        ({"value": None}, [span(0.7, 1, "agentlightning.reward.0.value")], 0.7),
    ],
)
def test_reward_comes_from_the_function_the_value_or_the_last_span(
    answer: dict[str, Any], spans: list[Span], expected: float
) -> None:
    from_span = "s" if spans and "reward" not in answer else ""
    assert rewards.resolve_reward(answer, spans) == (expected, from_span)


@pytest.mark.parametrize(
    "answer",
    [{"value": None}, {"value": "9"}, {"value": float("nan")}, {"value": {"reward": "good"}}, {"reward": 1e999}],
)
def test_what_is_not_a_finite_number_is_no_reward(answer: dict[str, Any]) -> None:
    with pytest.raises(rewards.InvalidReward):
        rewards.resolve_reward(answer, [])
