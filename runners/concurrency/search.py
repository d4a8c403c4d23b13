"""The search for the number of rollouts that a runner runs at once. Pure."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

FIRST_SLOTS = 4
"""Slots that a runner without a number in its settings begins with, and that a queue at the nodes leaves it."""
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
MIN_RAISES = 2
"""Steps up in a row after which slots double again."""
CERTAINTY = 1.3
"""Standard errors by which a step is better or worse before that ends its trial."""
MAX_RESTS = 7
"""Most cohorts between two steps while neither more slots nor fewer are better."""
FIRST_COHORT = 8
"""Least rollouts of a measurement; while slots double, it has two for each slot."""
COHORT = 64
"""Rollouts of later measurements, which tell smaller gains apart; few slots take `FIRST_COHORT` for each."""
MAX_COHORTS = 4
"""Cohorts that a measurement of throughput averages, and most cohorts of a trial."""

Direction = Literal["more", "fewer"]


@dataclass(frozen=True, slots=True)
class Cohort:
    """Measurement of rollouts that began with the same number of slots."""

    seconds: float
    """Typical duration."""
    num_running: float
    """Mean number of rollouts that ran meanwhile."""
    error: float = 0.0
    """Standard error of the typical duration, as a share of it."""

    @property
    def rate(self) -> float:
        """Throughput but for a constant factor, by Little's law (1961): those that run at once, over their duration.

        So pauses without tasks do not count, nor do rollouts that began with other slots.
        """
        return self.num_running / self.seconds


class SlotSearch:
    """Searches for the fewest slots with nearly the most throughput, by one step at a time and by relief.

    A step is kept if throughput follows it: up where it gains at least `MIN_ELASTICITY` of what the slots gain, or
    where durations vary too much to tell; down where it loses less. Until a step up is not kept, slots double, as in
    the slow start of TCP (RFC 5681); afterwards a step is a quarter, and at least one slot. Pressure takes a quarter of
    the slots without a trial. Once there is room again, slots double to the number before it, without a trial either.
    """

    def __init__(self, num_first: int = FIRST_SLOTS, max_slots: int = MAX_SLOTS) -> None:
        self._max_slots = max_slots
        self._num_base = min(num_first, max_slots)
        self._num_trial: int | None = None
        self._num_goal = 0  # the slots before relief, while there are fewer
        self._direction: Direction = "more"
        self._is_doubling = True
        self._base_throughput: _Throughput | None = None
        self._trial_throughput: _Throughput | None = None
        self._num_rests = self._num_refused = self._num_raised = 0
        self.reason = "first measurement"
        """Reason for the present number, for people."""

    @property
    def num_slots(self) -> int:
        """Slots to use now: at least 1."""
        return self._num_base if self._num_trial is None else self._num_trial

    @property
    def num_warm(self) -> int:
        """Slots whose agents stay warm: those to go back to after a trial of fewer are among them."""
        return max(self._num_base, self.num_slots)

    @property
    def cohort_size(self) -> int:
        """Number of rollouts whose measurement `decide` gets next."""
        if self._is_doubling or self._num_base < self._num_goal:
            return max(2 * self.num_slots, FIRST_COHORT)
        return max(self.num_slots, min(COHORT, FIRST_COHORT * self.num_slots))

    def relieve(self, pressure: str, num_least: int = 1) -> None:
        """Take a quarter of the slots, but leave ``num_least``; the ``pressure`` is named in a few words."""
        self._num_goal = max(self._num_goal, self._num_base)
        self._num_base = max(min(num_least, self.num_slots), int(self.num_slots * RELIEF))
        self._num_trial = self._trial_throughput = self._base_throughput = None
        self._is_doubling = False
        self._direction = "more"
        self._num_rests = self._num_refused = self._num_raised = 0
        self.reason = pressure

    def withdraw(self, num_open: int, reason: str) -> None:
        """Go back to at most ``num_open`` slots from a step that could not be made; ``reason`` in a few words."""
        self._num_trial = self._trial_throughput = None
        self._num_goal = 0
        if num_open < self._num_base:
            self._num_base, self._base_throughput = num_open, None
        self.reason = reason
        self._refuse()

    def decide(self, cohort: Cohort, num_more: int, obstacle: str = "") -> None:
        """Choose `num_slots` by the last measurement; at most ``num_more`` may be added, because of ``obstacle``."""
        if self._num_trial is not None:
            self._judge(cohort, num_more)
            if self._num_trial is not None or not self._is_doubling:
                return
        elif self._num_base >= self._num_goal:
            self._num_goal = 0
            self._measure(cohort)
        if cohort.num_running < MIN_USE * self._num_base:
            self.reason = "not all slots are used"
        elif self._num_base < self._num_goal:
            self._recover(num_more, obstacle)
        elif self._num_rests:
            self._num_rests -= 1
        else:
            self._try(num_more, obstacle)

    def _recover(self, num_more: int, obstacle: str) -> None:
        """Go back towards the slots before relief, as far as there is room."""
        num_added = min(self._count_doubling(num_more), self._num_goal - self._num_base)
        self._num_base += num_added
        self.reason = "back after relief" if num_added else obstacle

    def _count_doubling(self, num_more: int) -> int:
        """Count the slots that doubling adds: half of those that there is room for at most, as memory lags behind."""
        return min(self._num_base, (num_more + 1) // 2)

    def _measure(self, cohort: Cohort) -> None:
        now = _Throughput(cohort)
        if self._base_throughput is None:
            self._base_throughput, self._num_rests = now, 0
            return
        change, _, error = now.compare(self._base_throughput)
        if abs(change) > max(SUDDEN_CHANGE, 3 * error):
            self._base_throughput, self._num_rests = now, 0
            self._direction = "more" if change > 0 else "fewer"
        else:
            self._base_throughput.add(cohort)

    def _try(self, num_more: int, obstacle: str) -> None:
        """Begin a step, unless there is no room for it."""
        step = max(1, self._num_base // STEP)
        if self._direction == "more":
            step = self._count_doubling(num_more) if self._is_doubling else min(step, num_more)
            num_trial = min(self._num_base + step, self._max_slots)
        else:
            num_trial = max(1, self._num_base - step)
        if num_trial == self._num_base:
            if self._direction == "more":
                self.reason = obstacle if self._num_base < self._max_slots else "the most there may be"
            self._refuse()
            return
        self._num_trial = num_trial
        self.reason = f"trial of {num_trial} after {self._num_base}"

    def _judge(self, cohort: Cohort, num_more: int) -> None:
        """Keep the step or go back."""
        assert self._num_trial is not None and self._base_throughput is not None
        if self._trial_throughput is None:
            self._trial_throughput = _Throughput(cohort)
        else:
            self._trial_throughput.add(cohort)
        num_trial, throughput = self._num_trial, self._trial_throughput
        gain, more_running, error = throughput.compare(self._base_throughput)
        is_used = abs(more_running) >= abs(math.log(num_trial / self._num_base)) / 2
        surplus = gain - MIN_ELASTICITY * more_running
        is_decided = abs(surplus) >= CERTAINTY * error
        if is_used and not is_decided and throughput.num_cohorts < MAX_COHORTS:
            return
        self._num_trial = self._trial_throughput = None
        if not is_used:
            self.reason = "not all slots are used"
            self._refuse()
        elif surplus > 0 or (self._direction == "more" and not is_decided and num_more > 0):
            self.reason = "more throughput" if self._direction == "more" else "the same throughput with fewer"
            self._num_base, self._base_throughput = num_trial, throughput
            self._num_rests = self._num_refused = 0
            self._num_raised = self._num_raised + 1 if self._direction == "more" else 0
            self._is_doubling = self._is_doubling or self._num_raised >= MIN_RAISES
        else:
            self.reason = "no more throughput with more" if self._direction == "more" else "less throughput with fewer"
            self._refuse()

    def _refuse(self) -> None:
        """Turn around; rest ever longer once both ways have been refused."""
        self._is_doubling = False
        self._direction = "fewer" if self._direction == "more" else "more"
        self._num_refused, self._num_raised = self._num_refused + 1, 0
        self._num_rests = min(2 ** (self._num_refused // 2) - 1, MAX_RESTS)


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
        self._log_rate, self._log_num_running, self._variance = _logarithms(cohort)
        self.num_cohorts = 1

    def compare(self, before: "_Throughput") -> _Comparison:
        """Compare this measurement with one before it."""
        return _Comparison(
            self._log_rate - before._log_rate,
            self._log_num_running - before._log_num_running,
            math.sqrt(self._variance / self.num_cohorts + before._variance / before.num_cohorts),
        )

    def add(self, cohort: Cohort) -> None:
        """Average another cohort with the same slots."""
        self.num_cohorts = min(self.num_cohorts + 1, MAX_COHORTS)
        log_rate, log_num_running, variance = _logarithms(cohort)
        self._log_rate += (log_rate - self._log_rate) / self.num_cohorts
        self._log_num_running += (log_num_running - self._log_num_running) / self.num_cohorts
        self._variance += (variance - self._variance) / self.num_cohorts


def _logarithms(cohort: Cohort) -> tuple[float, float, float]:
    return math.log(cohort.rate), math.log(cohort.num_running), cohort.error**2
