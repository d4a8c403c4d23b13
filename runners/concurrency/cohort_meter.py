"""Measurement of rollouts that begin with the same number of slots. Pure."""

import itertools
import math
from dataclasses import dataclass
from statistics import stdev

from lightningbus.runners.concurrency.search import Cohort


@dataclass(frozen=True, slots=True)
class _Start:
    """Begin of a member of the cohort: the time, and the seconds that all rollouts have run until then."""

    at: float
    area: float


class CohortMeter:
    """Measures the first rollouts that begin after `restart`, until all of them have ended; times are in seconds.

    Rollouts that begin before, and those that the cohort has no place for, count as running alone. A cohort that took
    those that end first would take the short ones, and seem faster than the runner is.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._running = 0
        self._area = self._counted_to = 0.0
        self.restart(0)

    def restart(self, size: int) -> None:
        """Begin a cohort of so many rollouts."""
        self._size = size
        self._open: dict[int, _Start] = {}
        self._durations: list[float] = []
        self._area_of_members = 0.0

    def begin(self, now: float) -> int:
        """Count a rollout that begins; return its number for `end`."""
        self._advance(now)
        self._running += 1
        number = next(self._numbers)
        if len(self._durations) + len(self._open) < self._size:
            self._open[number] = _Start(now, self._area)
        return number

    def end(self, number: int, now: float, is_measured: bool) -> None:
        """Count the end of a rollout; one that is not measured leaves its place in the cohort to a later one."""
        self._advance(now)
        self._running -= 1
        start = self._open.pop(number, None)
        if start is not None and is_measured:
            self._durations.append(now - start.at)
            self._area_of_members += self._area - start.area

    @property
    def cohort(self) -> Cohort | None:
        """The measurement; None: not all have ended."""
        seconds = sum(self._durations)
        if self._size == 0 or len(self._durations) < self._size or seconds <= 0:
            return None
        mean = seconds / self._size
        error = stdev(self._durations) / math.sqrt(self._size) if self._size > 1 else mean
        return Cohort(mean, self._area_of_members / seconds, error / mean)

    def _advance(self, now: float) -> None:
        self._area += self._running * (now - self._counted_to)
        self._counted_to = now
