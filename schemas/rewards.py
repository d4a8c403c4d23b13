"""Rewards that spans carry: ours, Agent Lightning's, and OpenTelemetry's evaluation events. Pure."""

from collections.abc import Iterator
from typing import Any

from schemas import attributes
from schemas.events import Span


def rewards_of(span: Span) -> Iterator[Any]:
    """What a span says as a reward, unchecked, in order."""
    for name in (attributes.REWARD, attributes.AGL_REWARD):
        if name in span.attributes:
            yield span.attributes[name]
    for event in span.events:
        if event.get("name") == attributes.EVALUATION_EVENT:
            score = event.get("attributes", {}).get(attributes.EVALUATION_SCORE)
            if score is not None:
                yield score
