"""Streaks of groups that gave nothing to train on, by task set: one set may fail while the others are well. Pure."""

from collections.abc import Iterable, Sequence

from lightningbus.learner.batching.rollout_dispositions import is_passing
from lightningbus.learner.rollouts.rejection_streak import RejectionStreak
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.schemas.training import RolloutDisposition


class SetStreaks:
    """A streak for each set, and one of the whole run, which ends it: a group of any set ends that streak."""

    def __init__(self, sets: TaskSets, limit: int, max_groups: int | None = None) -> None:
        """Begin without a streak; ``limit`` and ``max_groups``: see `RejectionStreak`."""
        self._sets = sets
        self._by_set = {name: RejectionStreak(limit) for name in sets.names}
        self._run = RejectionStreak(limit, max_groups)

    def add(self, task: str, reasons: Sequence[str], *, is_outage: bool, example: str = "") -> None:
        """Count the group of a task that was rejected before any batch; see `RejectionStreak.add`."""
        for streak in (self._find(task), self._run):
            streak.add(1, reasons, is_outage=is_outage, example=example)

    def add_batch(self, dispositions: Iterable[RolloutDisposition]) -> None:
        """Count the groups of a batch: a set of which nothing was trained goes on with its streak, others end it."""
        by_set: dict[str, list[RolloutDisposition]] = {}
        for each in dispositions:
            by_set.setdefault(self._sets.find_name(each.task_id), []).append(each)
        for name, members in by_set.items():
            num_groups, reasons = len({each.task_id for each in members}), [each.exclusion_reason for each in members]
            for streak in (self._by_set[name], self._run):
                streak.add(num_groups, reasons, is_batch=True, is_outage=all(map(is_passing, reasons)))
        for task in {each.task_id for members in by_set.values() for each in members if each.trained}:
            self.end(task)

    def note_ready(self, task: str) -> None:
        """End the streak of a task's set because its group is ready, unless `needs_trial`."""
        if not self.needs_trial(task):
            self.end(task)

    def needs_trial(self, task: str) -> bool:
        """Return whether a ready group of the task must be built to know whether it can be trained."""
        return self._find(task).needs_trial

    def end(self, task: str) -> None:
        """End the streak of a task's set, because its groups can be trained."""
        self._find(task).end()
        self._run.end()

    @property
    def pauses(self) -> dict[str, float]:
        """Seconds to wait before the next group of a set is dispatched, for the sets whose streak is too long."""
        return {name: streak.pause for name, streak in self._by_set.items() if streak.is_too_long}

    @property
    def problems(self) -> dict[str, str]:
        """Streaks that are too long, each as a sentence, by the name of their set."""
        named = {name: f"task set {name!r}: " if name else "" for name in self._by_set}
        return {name: named[name] + streak.problem for name, streak in self._by_set.items() if streak.is_too_long}

    @property
    def verdict(self) -> str:
        """Sentence that says why the run must end; empty: a set is well, or has not shown yet whether it is."""
        return self._run.verdict if all(streak.num_failed for streak in self._by_set.values()) else ""

    def _find(self, task: str) -> RejectionStreak:
        return self._by_set[self._sets.find_name(task)]
