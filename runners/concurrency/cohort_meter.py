"""Measurement of rollouts that begin with the same number of slots. Pure."""

import itertools
import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from lightningbus.runners.concurrency.search import Cohort

MAX_MEDIANS = 4.0
"""Longest duration that counts as it is, as a multiple of the cohort's median."""
MIN_SECONDS = 1e-6
"""Shortest duration that counts as it is: the clock tells no shorter ones apart."""

End = Literal["whole", "cut off", "failed"]
"""End of a rollout: by itself, by its deadline, or early by a failure, which says nothing of its duration."""


@dataclass(frozen=True, slots=True)
class _Start:
    """Begin of a member of the cohort: the time, and the sum of the seconds that each rollout has run until then."""

    at: float
    rollout_seconds: float


class CohortMeter:
    """Measures the first rollouts that begin after `restart`; times are in seconds.

    Rollouts that begin before, and those that the cohort has no place for, count as running alone. A cohort that took
    those that end first would take the short ones, and seem faster than the runner is.

    Few rollouts that take very long would decide a mean. So durations beyond `MAX_MEDIANS` medians, and those that a
    deadline cuts off, count as so many medians (winsorizing: Tukey, The Future of Data Analysis, 1962), and the mean is
    that of logarithms, as a machine that is slower makes all of them longer by a factor. Nor does a cohort wait for
    members that have run for longer. One of which half are cut off gives way to the next.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._num_running = 0
        self._rollout_seconds = self._counted_at = 0.0
        self.restart(0)

    def restart(self, size: int) -> None:
        """Begin a cohort of so many rollouts."""
        self._size = size
        self._open: dict[int, _Start] = {}
        self._durations: list[float] = []
        self._seconds_of_members = self._rollout_seconds_of_members = 0.0

    def begin(self, now: float) -> int:
        """Count a rollout that begins; return its number for `end`."""
        self._advance(now)
        self._num_running += 1
        number = next(self._numbers)
        if len(self._durations) + len(self._open) < self._size:
            self._open[number] = _Start(now, self._rollout_seconds)
        return number

    def end(self, number: int, now: float, end: End) -> None:
        """Count the end of a rollout; one that failed leaves its place in the cohort to a later one."""
        self._advance(now)
        self._num_running -= 1
        start = self._open.pop(number, None)
        if start is not None and end != "failed":
            self._durations.append(now - start.at if end == "whole" else math.inf)
            self._seconds_of_members += now - start.at
            self._rollout_seconds_of_members += self._rollout_seconds - start.rollout_seconds
            if 2 * self._durations.count(math.inf) >= self._size:  # so the usual duration is not known
                self.restart(self._size)

    def measure(self, now: float) -> Cohort | None:
        """Return the measurement; None: members have yet to begin or end."""
        self._advance(now)
        if self._size == 0 or len(self._durations) + len(self._open) < self._size:
            return None
        ordered = [*sorted(self._durations), *[math.inf] * len(self._open)]
        longest = MAX_MEDIANS * ordered[len(ordered) // 2]
        ages = [now - start.at for start in self._open.values()]
        seconds = self._seconds_of_members + sum(ages)
        if longest == math.inf or min(ages, default=longest) < longest or seconds <= 0:
            return None
        rollout_seconds = self._rollout_seconds_of_members + sum(
            self._rollout_seconds - start.rollout_seconds for start in self._open.values()
        )
        logarithms = [math.log(max(min(duration, longest), MIN_SECONDS)) for duration in ordered]
        error = stdev(logarithms) / math.sqrt(self._size) if self._size > 1 else 1.0
        return Cohort(math.exp(fmean(logarithms)), rollout_seconds / seconds, error)

    def _advance(self, now: float) -> None:
        self._rollout_seconds += self._num_running * (now - self._counted_at)
        self._counted_at = now
