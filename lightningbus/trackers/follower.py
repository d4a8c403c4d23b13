"""Follows a run in the store and hands its points to one tracker, in a thread of its own."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightningbus.schemas.text import shorten_line
from lightningbus.trackers.base import Tracker
from lightningbus.trackers.store_points import STEP_KEY, Point, model_of_step

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Seconds between two queries to the store, which sends no notifications."""
LAST_POLL_SECONDS = 1.0
LAST_LOOKS = 3
"""Number of queries after the run's end: rows of the last rollouts may still be on their way."""


class PointJournal:
    """The points that a tracker has, in a file of the run: a resume does not log them again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys = set(json.loads(path.read_text())) if path.exists() else set[str]()
        self.last_steps: dict[str, int] = {}
        """The last step that the tracker has, by model; see `store_points.model_of_step`."""
        self._note_steps(self._keys)

    def select_new(self, points: Iterable[Point]) -> Iterator[Point]:
        """Select the points that the tracker does not have."""
        return (point for point in points if point.key not in self._keys)

    def add(self, points: Iterable[Point]) -> None:
        """Record points that the tracker has received."""
        new = {point.key for point in points}
        self._keys |= new
        self._note_steps(new)
        temporary = self._path.with_suffix(".writing")
        temporary.write_text(json.dumps(sorted(self._keys)))
        temporary.replace(self._path)

    def _note_steps(self, keys: Iterable[str]) -> None:
        for model, step in (model_of_step(key) for key in keys if key.startswith(STEP_KEY)):
            self.last_steps[model] = max(self.last_steps.get(model, -1), step)


class Follower(threading.Thread):
    """Logs each point once. A tracker or a store that is down delays points and loses none."""

    def __init__(
        self, name: str, open_tracker: Callable[[], Tracker],
        read_points: Callable[[bool, Mapping[str, int]], Iterable[Point]],
        journal: PointJournal, poll_seconds: float = POLL_SECONDS,
    ) -> None:  # fmt: skip
        """Prepare a thread; ``read_points`` gets whether the run is over and the last known steps, and may raise."""
        super().__init__(name=f"tracker-{name}", daemon=True)
        self._tracker_name, self._open_tracker, self._read_points = name, open_tracker, read_points
        self._journal, self._poll_seconds = journal, poll_seconds
        self._over, self._is_run_over = threading.Event(), True
        self._tracker: Tracker | None = None
        self._is_failing = False

    def finish(self, *, is_over: bool = True) -> None:
        """Log the remaining points of an ended run, then end.

        Of a run that was interrupted (``is_over`` false) rewards of versions whose rollouts may go on are left to its
        resume.
        """
        self._is_run_over = is_over
        self._over.set()

    def run(self) -> None:
        """Follow until the run is over."""
        while not self._over.wait(self._poll_seconds):
            self._attempt(self._follow, False)
        for number in range(LAST_LOOKS):
            if number:
                time.sleep(min(LAST_POLL_SECONDS, self._poll_seconds))
            self._attempt(self._follow, self._is_run_over)
        if self._tracker is not None:
            self._attempt(self._tracker.close)

    def _follow(self, is_over: bool) -> None:
        new = list(self._journal.select_new(self._read_points(is_over, self._journal.last_steps)))
        if new:
            self._tracker = self._tracker or self._open_tracker()
            for point in new:
                self._tracker.log(point.axis, point.position, point.metrics)
            self._tracker.flush()
            self._journal.add(new)

    def _attempt(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call `work`; of failures in a row the first is logged."""
        try:
            work(*arguments)
        except Exception as error:  # a client of others: training goes on whatever it raises
            if not self._is_failing:
                reason = shorten_line(str(error), 200) or type(error).__name__
                log.warning("tracker %s: %s; its points wait until it answers", self._tracker_name, reason)
            self._is_failing = True
        else:
            self._is_failing = False
