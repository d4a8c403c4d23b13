"""Rewards in spans: our attribute, Agent Lightning's, and OpenTelemetry's evaluation events. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.semconv import attributes
from schemas.spans import Span


def extract_rewards(span: Span) -> Iterator[Any]:
    """The rewards of a span, unchecked, in order."""
    for name in (attributes.REWARD, attributes.AGL_REWARD):
        if name in span.attributes:
            yield span.attributes[name]
    for event in span.events:
        if event.get("name") == attributes.EVALUATION_EVENT:
            event_attributes = event.get("attributes")
            if isinstance(event_attributes, dict):
                score = event_attributes.get(attributes.EVALUATION_SCORE)
                if score is not None:
                    yield score


def reward_dimensions(span_attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dimensions of a reward by name, the one that counts first; our own reward has one. Agent Lightning, 0.3."""
    if attributes.REWARD in span_attributes:
        yield "reward", span_attributes[attributes.REWARD]
    for index in range(len(span_attributes)):
        value = span_attributes.get(f"{attributes.AGL_REWARD_PREFIX}.{index}.value")
        if value is None:
            return
        yield str(span_attributes.get(f"{attributes.AGL_REWARD_PREFIX}.{index}.name", index)), value
