"""Dispositions of rollouts that are not trained on, kept until a training step reports them."""

from collections.abc import Iterable, Sequence

from lightningbus.common.observability import metrics
from lightningbus.learner.batching.rollout_dispositions import (
    NO_SIGNAL,
    SURPLUS,
    describe_missing_reward,
    excluded,
    is_passing,
    not_finished,
)
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.set_streaks import SetStreaks
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.training import RolloutDisposition, TrainingStep


class ExcludedRollouts:
    """Takes what leaves the groups unused; a replay from a later checkpoint passes it over."""

    def __init__(self, consumer: RolloutConsumer, settings: LearnerSettings) -> None:
        self._consumer, self._settings, self._sets = consumer, settings, TaskSets(settings)
        self._dispositions: list[RolloutDisposition] = []
        self.streaks = SetStreaks(self._sets, settings.num_groups_under_way, settings.failed_groups_limit)
        self._ready: set[str] = set()
        """Tasks of the groups that were ready at the last look."""

    def collect(self) -> list[str]:
        """Record the failed groups and attempts since the last call; return the tasks of those groups."""
        groups = self._consumer.groups
        dropped = [group.task_id for group in groups.rejected]
        before, self._ready = self._ready, {group.task_id for group in groups.ready}
        for task in self._ready - before:
            self.streaks.note_ready(task)
        for group in groups.rejected:
            self._reject(group)
        self._exclude(groups.late_attempts, "late")
        self._dispositions += not_finished(groups.missing_samples)
        self._exclude(groups.surplus_attempts, SURPLUS)
        groups.rejected, groups.late_attempts, groups.missing_samples, groups.surplus_attempts = [], [], [], []
        return dropped

    def set_aside(self, group: RolloutGroup) -> None:
        """Record a ready group that is not trained, because none of its calls has an advantage."""
        self._consumer.groups.take(group)
        self._exclude(group.rollouts, NO_SIGNAL)

    def collect_remaining(self) -> None:
        """Record all remaining rollouts after training."""
        self.collect()
        self._exclude(list(self._consumer.groups.pending_rollouts()), "training was over")

    def add(self, uses: Iterable[RolloutDisposition], rollouts: Iterable[Rollout]) -> None:
        """Note rollouts that are not trained on."""
        self._dispositions += uses
        self._consumer.mark_consumed(rollouts)

    def add_batch(self, uses: Sequence[RolloutDisposition], rollouts: Iterable[Rollout]) -> None:
        """Note a batch that gave nothing to train on."""
        self.add(uses, rollouts)
        self.streaks.add_batch(uses)

    def drain(self) -> list[RolloutDisposition]:
        """Return all recorded dispositions and forget them; the caller publishes them."""
        taken, self._dispositions = self._dispositions, []
        return taken

    def _reject(self, group: RolloutGroup) -> None:
        """Record a group with too few rewards, with a reason for each rollout without one."""
        rollouts = group.rollouts
        failed = self._settings.failed_rollouts
        has_reward = {rollout.id for rollout in rollouts if training_reward(rollout, failed) is not None}
        before = len(self._dispositions)
        missing = describe_missing_reward(self._sets.find_settings(group.task_id))
        self._exclude([rollout for rollout in rollouts if rollout.id not in has_reward], missing)
        self._exclude([rollout for rollout in rollouts if rollout.id in has_reward], "group of fewer than two")
        reasons = [disposition.exclusion_reason for disposition in self._dispositions[before:]]
        example = next((f"{each.id}: {each.outcome}: {each.error}" for each in rollouts if each.error), "")
        num_passing = sum(map(is_passing, reasons)) + group.group_size - len(rollouts)
        is_outage = 2 * num_passing >= group.group_size
        self.streaks.add(group.task_id, reasons, is_outage=is_outage, example=example)

    def _exclude(self, rollouts: list[Rollout], reason: str) -> None:
        self.add(excluded(rollouts, reason, self._settings), rollouts)


def update_metrics(event: TrainingStep) -> None:
    """Count a training step, and what it did with each rollout."""
    metrics.steps.inc()
    metrics.step_duration.observe((event.ended_ns - event.started_ns) / 1e9)
    metrics.learner_idle.inc(event.metrics["seconds/idle"])
    metrics.learner_weight_version.set(event.version)
    metrics.reward_mean.set(event.metrics["reward/mean"])
    metrics.staleness.set(event.metrics["staleness/mean"])
    metrics.trained_tokens.inc(event.metrics["tokens"])
    for disposition in event.rollouts:
        metrics.learner_rollouts.labels("trained" if disposition.trained else "excluded").inc()
