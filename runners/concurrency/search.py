"""The search for the number of rollouts that a runner runs at once. Pure."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

FIRST_SLOTS = 4
MAX_SLOTS = 256
"""Most rollouts that a runner runs at once without a number in its settings."""
MIN_ELASTICITY = 0.5
"""Least gain in throughput, as a share of the gain in slots, for which more slots are kept."""
MIN_USE = 0.7
"""Least share of the slots that is in use where their number is judged."""
RELIEF = 0.75
"""Share of the slots that is left under pressure."""
STEP = 4
"""Slots are raised and lowered by one in so many, once they have first been too many."""
SUDDEN_CHANGE = 0.5
"""Change in the logarithm of throughput at the same number of slots after which earlier measurements are forgotten."""
NUM_KEPT = 2
"""Steps up in a row after which slots double again."""
CERTAINTY = 1.3
"""Standard errors by which a step is better or worse before that ends its trial."""
MAX_REST = 7
"""Most cohorts between two steps while neither more slots nor fewer are better."""
FIRST_COHORT, COHORT = 24, 64
"""Least rollouts of a measurement while slots are doubled, and later, when smaller gains are told apart."""
MAX_MEMORY = 4
"""Cohorts that a measurement of throughput averages, and most cohorts of a trial."""

Direction = Literal["more", "fewer"]


@dataclass(frozen=True, slots=True)
class Cohort:
    """Measurement of rollouts that began with the same number of slots, and of which all have ended."""

    seconds: float
    """Mean duration."""
    running: float
    """Mean number of rollouts that ran meanwhile."""
    error: float = 0.0
    """Standard error of the mean duration, as a share of it."""

    @property
    def rate(self) -> float:
        """Rollouts per second, by Little's law (1961): those that run at once, over their mean duration.

        So pauses without tasks do not count, nor do rollouts that began with other slots.
        """
        return self.running / self.seconds


class SlotSearch:
    """Searches for the fewest slots with nearly the most throughput, by one step at a time and by relief.

    A step is kept if throughput follows it: up where it gains at least `MIN_ELASTICITY` of what the slots gain, down
    where it loses less. Until a step up is not kept, slots double, as in the slow start of TCP (RFC 5681); afterwards a
    step is a quarter, and at least one slot. Pressure takes a quarter of the slots without a trial.
    """

    def __init__(self, first: int = FIRST_SLOTS, ceiling: int = MAX_SLOTS) -> None:
        self._ceiling = ceiling
        self._base = min(first, ceiling)
        self._trial: int | None = None
        self._direction: Direction = "more"
        self._is_doubling = True
        self._measured: _Throughput | None = None
        self._tried: _Throughput | None = None
        self._rest = self._num_refused = self._num_kept = 0
        self.reason = "first measurement"
        """Reason for the present number, for people."""

    @property
    def slots(self) -> int:
        """Slots to use now: at least 1."""
        return self._base if self._trial is None else self._trial

    @property
    def cohort_size(self) -> int:
        """Number of rollouts whose measurement `decide` gets next."""
        return max(self.slots, FIRST_COHORT if self._is_doubling else COHORT)

    def relieve(self, pressure: str) -> None:
        """Take a quarter of the slots, because of a ``pressure`` that is named in a few words."""
        self._base = max(1, int(self.slots * RELIEF))
        self._trial = self._tried = self._measured = None
        self._is_doubling = False
        self._direction, self._rest, self._num_refused, self._num_kept = "more", 1, 0, 0
        self.reason = pressure

    def withdraw(self, reason: str) -> None:
        """Go back from a step that could not be made, because of a ``reason`` in a few words."""
        self._trial = self._tried = None
        self.reason = reason
        self._refuse()

    def decide(self, cohort: Cohort, num_more: int, obstacle: str = "") -> None:
        """Choose `slots` by the last measurement; at most ``num_more`` may be added, because of ``obstacle``."""
        if self._trial is None:
            self._measure(cohort)
            self._try(cohort, num_more, obstacle)
        else:
            self._judge(cohort)
            if self._is_doubling and self._trial is None:
                self._try(cohort, num_more, obstacle)

    def _measure(self, cohort: Cohort) -> None:
        now = _Throughput(cohort)
        change = now.compare(self._measured).gain if self._measured is not None else 0.0
        if self._measured is None or abs(change) > max(SUDDEN_CHANGE, 3 * now.compare(self._measured).error):
            self._measured = now
            self._rest = 0
            if change:
                self._direction = "more" if change > 0 else "fewer"
        else:
            self._measured.add(cohort)

    def _try(self, cohort: Cohort, num_more: int, obstacle: str) -> None:
        """Begin a step, unless it is time to rest, or there is no need or no room for it."""
        if cohort.running < MIN_USE * self._base:
            self.reason = "not all slots are used"
            return
        if self._rest:
            self._rest -= 1
            return
        step = max(1, self._base // STEP)
        if self._direction == "more":
            step = self._base if self._is_doubling else step
            most = min(self._base + num_more, self._ceiling)
            trial = min(self._base + step, most)
            if trial <= self._base:
                self.reason = obstacle if self._base < self._ceiling else "the most there may be"
                self._refuse()
                return
        else:
            trial = max(1, self._base - step)
            if trial == self._base:
                self._refuse()
                return
        self._trial = trial
        self.reason = f"trial of {trial} after {self._base}"

    def _judge(self, cohort: Cohort) -> None:
        """Keep the step or go back."""
        assert self._trial is not None and self._measured is not None
        if self._tried is None:
            self._tried = _Throughput(cohort)
        else:
            self._tried.add(cohort)
        trial, tried, (gain, more_running, error) = self._trial, self._tried, self._tried.compare(self._measured)
        is_used = abs(more_running) >= abs(math.log(trial / self._base)) / 2
        surplus = gain - MIN_ELASTICITY * more_running
        if is_used and abs(surplus) < CERTAINTY * error and tried.num_cohorts < MAX_MEMORY:
            return
        self._trial = self._tried = None
        if not is_used:
            self.reason = "not all slots are used"
            self._refuse()
        elif surplus > 0:
            self.reason = "more throughput" if self._direction == "more" else "the same throughput with fewer"
            self._base, self._measured = trial, tried
            self._rest = self._num_refused = 0
            self._num_kept += 1
            if self._direction == "more" and self._num_kept >= NUM_KEPT:
                self._is_doubling = True
        else:
            self.reason = "no more throughput with more" if self._direction == "more" else "less throughput with fewer"
            self._refuse()

    def _refuse(self) -> None:
        """Turn around; rest ever longer once both ways have been refused."""
        self._is_doubling = False
        self._direction = "fewer" if self._direction == "more" else "more"
        self._num_refused, self._num_kept = self._num_refused + 1, 0
        self._rest = min(2 ** (self._num_refused // 2) - 1, MAX_REST)


class _Comparison(NamedTuple):
    """One measurement after another, in logarithms."""

    gain: float
    """Throughput."""
    more_running: float
    """Rollouts that ran at once."""
    error: float
    """Standard error of the gain."""


class _Throughput:
    """Mean measurement of the last cohorts with the same slots."""

    def __init__(self, cohort: Cohort) -> None:
        self._log_rate, self._log_running, self._variance = _logarithms(cohort)
        self.num_cohorts = 1

    def compare(self, before: "_Throughput") -> _Comparison:
        """Compare this measurement with one before it."""
        return _Comparison(
            self._log_rate - before._log_rate,
            self._log_running - before._log_running,
            math.sqrt(self._variance / self.num_cohorts + before._variance / before.num_cohorts),
        )

    def add(self, cohort: Cohort) -> None:
        """Average another cohort with the same slots."""
        self.num_cohorts = min(self.num_cohorts + 1, MAX_MEMORY)
        log_rate, log_running, variance = _logarithms(cohort)
        self._log_rate += (log_rate - self._log_rate) / self.num_cohorts
        self._log_running += (log_running - self._log_running) / self.num_cohorts
        self._variance += (variance - self._variance) / self.num_cohorts


def _logarithms(cohort: Cohort) -> tuple[float, float, float]:
    return math.log(cohort.rate), math.log(cohort.running), cohort.error**2
