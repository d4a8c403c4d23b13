"""The interface of a tracker: it takes points and a run's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Axis = Literal["step", "version"]
"""Horizontal axis of a metric: training steps, or weight versions."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as trackers know it."""

    name: str
    id: str
    """Id that stays the same after a resume: a tracker continues its run of that id."""
    directory: Path
    config: Mapping[str, Any]
    """The run's settings; none of them is a secret."""


class Tracker(Protocol):
    """A client of one tracker, open; its own errors mean that it is down."""

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """Log metrics at a step or version."""
        ...

    def flush(self) -> None:
        """Return when all that was logged is kept: by the service, or in its client's files."""
        ...

    def close(self) -> None:
        """End the tracker's run."""
        ...
