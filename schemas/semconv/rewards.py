"""Rewards that spans carry: ours, Agent Lightning's, and OpenTelemetry's evaluation events. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.semconv import attributes
from schemas.spans import Span


def rewards_of(span: Span) -> Iterator[Any]:
    """What a span says as a reward, unchecked, in order."""
    for name in (attributes.REWARD, attributes.AGL_REWARD):
        if name in span.attributes:
            yield span.attributes[name]
    for event in span.events:
        if event.get("name") == attributes.EVALUATION_EVENT:
            said = event.get("attributes")
            score = said.get(attributes.EVALUATION_SCORE) if isinstance(said, dict) else None
            if score is not None:
                yield score


def dimensions(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dimensions of a reward by name, the one that counts first; of ours there is one. Agent Lightning, 0.3."""
    if attributes.REWARD in said:
        yield "reward", said[attributes.REWARD]
    for place in range(len(said)):
        value = said.get(f"{attributes.AGL_REWARDS}.{place}.value")
        if value is None:
            return
        yield str(said.get(f"{attributes.AGL_REWARDS}.{place}.name", place)), value
