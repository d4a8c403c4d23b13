"""What became of the rollouts that are not trained on, kept until a training step tells it."""

from collections.abc import Iterable

from learner.batching.rollout_dispositions import SURPLUS, excluded, not_finished
from learner.rollouts.assembler import Rollout
from learner.rollouts.consumer import RolloutConsumer
from learner.settings.learner import LearnerSettings
from schemas.training import RolloutDisposition


class ExcludedRollouts:
    """Takes what leaves the groups unused; a replay from a later checkpoint passes it over."""

    def __init__(self, consumer: RolloutConsumer, settings: LearnerSettings) -> None:
        self._consumer, self._settings = consumer, settings
        self._dispositions: list[RolloutDisposition] = []

    def collect(self) -> list[str]:
        """Note the groups and attempts that came to nothing since; returns the tasks of those groups."""
        groups = self._consumer.groups
        dropped = [group.task_id for group in groups.rejected]
        for group in groups.rejected:
            self._exclude(group.rollouts, "group of fewer than two")
        self._exclude(groups.late_attempts, "late")
        self._dispositions += not_finished(groups.missing_samples)
        self._exclude(groups.surplus_attempts, SURPLUS)
        groups.rejected, groups.late_attempts, groups.missing_samples, groups.surplus_attempts = [], [], [], []
        return dropped

    def collect_remaining(self) -> None:
        """Training is over: note whatever is still there."""
        self.collect()
        self._exclude(list(self._consumer.groups.pending_rollouts()), "training was over")

    def add(self, uses: Iterable[RolloutDisposition], rollouts: Iterable[Rollout]) -> None:
        """Note a batch that gave nothing to train on."""
        self._dispositions += uses
        self._consumer.mark_consumed(rollouts)

    def drain(self) -> list[RolloutDisposition]:
        """All that has been noted; from now on it is the taker's to tell."""
        taken, self._dispositions = self._dispositions, []
        return taken

    def _exclude(self, rollouts: list[Rollout], reason: str) -> None:
        self.add(excluded(rollouts, reason, self._settings), rollouts)
