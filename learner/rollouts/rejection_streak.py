"""Streaks of groups that gave nothing to train on: reasons, pause between dispatches, and when to end. Pure."""

from collections import Counter
from collections.abc import Iterable

from lightningbus.alerts.table import describe
from lightningbus.common.client_variables import CLIENTS
from lightningbus.schemas.text import shorten

MAX_REASONS, MAX_ERROR_CHARS = 3, 300
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
"""Seconds to wait before the next dispatch after too many such groups in a row; the pause doubles with each of them."""
MAX_DOUBLINGS = 10
NO_CALL = "no model call"
"""Part of the reason for excluding a rollout whose agent called no model."""
CALL_ADVICE = f"client must call the base URL that it gets, in {' or '.join(each.base_url for each in CLIENTS)}"
"""End of a sentence for an agent that called no model."""


class RejectionStreak:
    """Counts groups since the last one that could be trained."""

    def __init__(self, limit: int, max_groups: int | None = None) -> None:
        """Begin without a streak; after ``limit`` such groups in a row, groups are dispatched one by one.

        ``max_groups``: number of groups in a row without training data after which the run ends; None: never.
        """
        self._limit, self._max_groups = limit, max_groups
        self._num_groups = 0
        self.num_failed = 0
        """Groups of the streak that an outage does not explain."""
        self._reasons: Counter[str] = Counter()
        self._example = ""
        self.needs_trial = True
        """Whether only building a ready group shows that it ends the streak: no group was trained yet, or the last
        ready ones gave nothing."""

    def add(
        self,
        num_groups: int,
        reasons: Iterable[str],
        *,
        is_batch: bool = False,
        is_outage: bool = False,
        example: str = "",
    ) -> None:
        """Count groups that gave no training data; ``reasons`` has one entry for each rollout.

        ``is_batch``: a whole batch was dropped. ``is_outage``: these groups failed because of an outage, so they do not
        count towards ending the run. ``example``: a rollout and its error.
        """
        self._num_groups += num_groups
        self.num_failed += 0 if is_outage else num_groups
        self._reasons.update(reasons)
        self._example = example or self._example
        self.needs_trial |= is_batch

    def end(self) -> None:
        """End the streak, because a group can be trained."""
        self._num_groups, self.num_failed, self.needs_trial = 0, 0, False
        self._reasons.clear()
        self._example = ""

    @property
    def is_too_long(self) -> bool:
        """Whether more groups in a row gave no training data than the limit allows."""
        return self._num_groups > self._limit

    @property
    def pause(self) -> float:
        """Seconds to wait before the next group is dispatched; 0: none."""
        if not self.is_too_long:
            return 0.0
        if self._never_calls:  # no outage, whose end is worth waiting for
            return FIRST_PAUSE_SECONDS
        num_doublings = min(self._num_groups - self._limit - 1, MAX_DOUBLINGS)
        return min(FIRST_PAUSE_SECONDS * 2.0**num_doublings, MAX_PAUSE_SECONDS)

    @property
    def problem(self) -> str:
        """The streak in a sentence; empty: it is not too long."""
        if not self.is_too_long:
            return ""
        return describe("groups_rejected", findings=self._findings)

    @property
    def verdict(self) -> str:
        """Sentence that says why the run must end; empty: it may go on."""
        if self._max_groups is None or self.num_failed < self._max_groups:
            return ""
        example = f"; for example {shorten(self._example, MAX_ERROR_CHARS)}" if self._example else ""
        advice = f"; the agent's {CALL_ADVICE}" if self._never_calls else ""
        return f"{self._findings}{example}{advice}: correct that and resume the run, or raise max_failed_groups"

    @property
    def _never_calls(self) -> bool:
        """Whether no rollout of the streak called a model."""
        return bool(self._reasons) and all(reason.endswith(NO_CALL) for reason in self._reasons)

    @property
    def _findings(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common(MAX_REASONS))
        return f"the last {self._num_groups} groups gave nothing to train on ({reasons})"
