"""The reward of an attempt, from what the agent gave: a reward function, a return value, or a span."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from schemas import attributes
from schemas.events import Span

NO_REWARD = (
    "the agent gave no reward: return a number, set a reward function, or emit a span with "
    f"the attribute {attributes.REWARD}"
)


class NotAReward(ValueError):
    """Something stood where a reward should, and was not a finite number."""


def as_reward(value: Any) -> float:
    """A finite float; booleans count as 1 and 0. Raises `NotAReward`."""
    if not isinstance(value, int | float):
        raise NotAReward(f"a reward is a number, not {str(value)[:80]!r}")
    if not math.isfinite(value):
        raise NotAReward(f"a reward is a finite number, not {value}")
    return float(value)


def resolve(answer: Mapping[str, Any], spans: Iterable[Span]) -> float:
    """The reward function's value, else the returned number or its ``reward`` field, else the last span's.

    Raises `NotAReward`, also when there is none.
    """
    if answer.get("reward") is not None:
        return as_reward(answer["reward"])
    value = answer.get("value")
    if isinstance(value, dict) and "reward" in value:
        return as_reward(value["reward"])
    if isinstance(value, int | float):
        return as_reward(value)
    found = [said for span in sorted(spans, key=lambda span: span.end_ns) for said in _said_by(span)]
    if not found:
        raise NotAReward(NO_REWARD)
    return as_reward(found[-1])


def _said_by(span: Span) -> Iterable[Any]:
    for name in (attributes.REWARD, attributes.AGL_REWARD):
        if name in span.attributes:
            yield span.attributes[name]
    for event in span.events:
        if event.get("name") == attributes.EVALUATION_EVENT:
            score = event.get("attributes", {}).get(attributes.EVALUATION_SCORE)
            if score is not None:
                yield score
