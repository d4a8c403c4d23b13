"""A file of JSON lines in the run's directory: an object for each step, and one for the rewards of each version."""

import json
import math
import os
from collections.abc import Mapping

from lightningbus.trackers.base import Axis, TrackedRun

FILE = "metrics.jsonl"


class JsonlTracker:
    """Appends lines such as ``{"step": 3, "actor/loss": 0.1}``; a number that JSON does not have is null."""

    def __init__(self, run: TrackedRun) -> None:
        path = run.directory / FILE
        path.touch()
        self._file = path.open("r+b")
        content = self._file.read()
        self._file.seek(content.rfind(b"\n") + 1)
        self._file.truncate()  # a line that a killed job left half written; its point is logged again
        self._versions: dict[int, dict[str, float]] = {}
        """Rewards since the last flush, by version."""

    def log(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        if axis == "version":  # each series is a point of its own
            self._versions.setdefault(position, {}).update(metrics)
        else:
            self._write(axis, position, metrics)

    def flush(self) -> None:
        """See `Tracker.flush`."""
        for version, metrics in sorted(self._versions.items()):
            self._write("version", version, metrics)
        self._versions.clear()
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """See `Tracker.close`."""
        self.flush()
        self._file.close()

    def _write(self, axis: Axis, position: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({axis: position, **finite}).encode() + b"\n")
