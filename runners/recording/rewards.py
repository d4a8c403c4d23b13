"""The reward of an attempt, from what the agent gave: a reward function, a return value, or a span."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.semconv import attributes
from schemas.semconv.rewards import extract_rewards
from schemas.spans import Span

NO_REWARD = (
    "the agent gave no reward: return a number, set a reward function, or emit a span with "
    f"the attribute {attributes.REWARD}"
)


class InvalidReward(ValueError):
    """Something stood where a reward should, and was not a finite number."""


def parse_reward(value: Any) -> float:
    """A finite float; booleans count as 1 and 0. Raises `InvalidReward`."""
    if not isinstance(value, int | float):
        raise InvalidReward(f"a reward is a number, not {str(value)[:80]!r}")
    try:
        reward = float(value)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise InvalidReward(f"a reward is a finite number, not {str(value)[:80]}")
    return reward


def resolve_reward(answer: Mapping[str, Any], spans: Iterable[Span]) -> tuple[float, str]:
    """The reward function's value, else the returned number or its ``reward`` field, else the last span's.

    With it the id of that span, empty where the reward is not a span's. Raises `InvalidReward`, also without any.
    """
    if "reward" in answer:
        return parse_reward(answer["reward"]), ""
    value = answer.get("value")
    if isinstance(value, dict) and "reward" in value:
        return parse_reward(value["reward"]), ""
    if isinstance(value, int | float):
        return parse_reward(value), ""
    rewards = [
        (reward, span) for span in sorted(spans, key=lambda span: span.end_ns) for reward in extract_rewards(span)
    ]
    if not rewards:
        raise InvalidReward(NO_REWARD)
    reward, span = rewards[-1]
    return parse_reward(reward), span.span_id
