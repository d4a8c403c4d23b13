"""Groups that gave nothing to train on, one after the other: why, and how slowly the next ones are tried. Pure."""

from collections import Counter
from collections.abc import Iterable

MAX_REASONS = 3
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
"""Before the next group is dispatched, once there were too many in a row; it doubles with each of them."""
MAX_DOUBLINGS = 10


class RejectionStreak:
    """Counts groups since the last one that could be trained."""

    def __init__(self, limit: int) -> None:
        """``limit`` groups in a row may give nothing, then groups are dispatched one by one."""
        self._limit = limit
        self._num_groups = 0
        self._reasons: Counter[str] = Counter()
        self._has_dropped_batch = False

    def add(self, num_groups: int, reasons: Iterable[str], *, is_batch: bool = False) -> None:
        """These groups gave nothing, for ``reasons``, one for each rollout; ``is_batch``: a whole batch was dropped."""
        self._num_groups += num_groups
        self._reasons.update(reasons)
        self._has_dropped_batch |= is_batch

    def note_ready(self) -> None:
        """A group is ready. That ends the streak, unless the last batch of ready groups was dropped."""
        if not self._has_dropped_batch:
            self.end()

    def end(self) -> None:
        """A training step was made."""
        self._num_groups, self._has_dropped_batch = 0, False
        self._reasons.clear()

    @property
    def is_too_long(self) -> bool:
        """Whether more groups in a row gave nothing than may."""
        return self._num_groups > self._limit

    @property
    def pause(self) -> float:
        """Seconds to wait before the next group is dispatched; 0: none."""
        if not self.is_too_long:
            return 0.0
        num_doublings = min(self._num_groups - self._limit - 1, MAX_DOUBLINGS)
        return min(FIRST_PAUSE_SECONDS * 2.0**num_doublings, MAX_PAUSE_SECONDS)

    @property
    def problem(self) -> str:
        """The streak in a sentence; empty: it is not too long."""
        if not self.is_too_long:
            return ""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common(MAX_REASONS))
        return f"the last {self._num_groups} groups gave nothing to train on ({reasons}): they are tried one by one now"
