"""Rewards in spans: our attributes, Agent Lightning's, and OpenTelemetry's evaluation events. Pure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span

MAIN = "reward"
"""Name of the reward that counts for the rollout, also of one without a name."""

MAX_REWARD = 1e12
"""Largest absolute reward: sums and squares of many rewards, and gradients, are finite in float32."""


def is_usable(reward: float) -> bool:
    """Return whether training can use a number as a reward."""
    return math.isfinite(reward) and abs(reward) <= MAX_REWARD


def extract_rewards(span: Span) -> Iterator[Any]:
    """Yield the unchecked intermediate rewards of a span: its main reward, and every evaluation."""
    dimensions = dict(reward_dimensions(span.attributes))
    if dimensions:
        yield dimensions[find_main(dimensions)]
    for _, score in _evaluations(span):
        yield score


def named_rewards(span: Span) -> dict[str, Any]:
    """Collect all rewards of a span by name, unchecked, in order; the first of a name counts."""
    rewards: dict[str, Any] = {}
    for name, value in (*reward_dimensions(span.attributes), *_evaluations(span)):
        rewards.setdefault(name, value)
    return rewards


def find_main(names: Mapping[str, Any]) -> str:
    """Choose the name of the rollout's own reward: `MAIN`, else the first. At least one is given."""
    return MAIN if MAIN in names else next(iter(names))


def reward_dimensions(span_attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the rewards among attributes by name: our own, then the dimensions of Agent Lightning's reward (0.3)."""
    if attributes.REWARD in span_attributes:
        yield MAIN, span_attributes[attributes.REWARD]
    for key, value in span_attributes.items():
        if key.startswith(attributes.NAMED_REWARD_PREFIX):
            yield key.removeprefix(attributes.NAMED_REWARD_PREFIX), value
    for index in range(len(span_attributes)):
        value = span_attributes.get(f"{attributes.AGL_REWARD_PREFIX}.{index}.value")
        if value is None:
            return
        yield str(span_attributes.get(f"{attributes.AGL_REWARD_PREFIX}.{index}.name", index)), value


def _evaluations(span: Span) -> Iterator[tuple[str, Any]]:
    """Yield scores by name: of events on the span, and of a log record that became this span."""
    candidates = [(event.get("name"), event.get("attributes")) for event in span.events]
    for name, fields in (*candidates, (span.name, span.attributes)):
        if name == attributes.EVALUATION_EVENT and isinstance(fields, dict):
            score = fields.get(attributes.EVALUATION_SCORE)
            if score is not None:
                yield str(fields.get(attributes.EVALUATION_NAME) or MAIN), score
