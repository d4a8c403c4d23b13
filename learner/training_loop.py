"""The training loop: takes groups, trains on them, commits each step and publishes each rollout's disposition."""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.observability.faults import count_fault
from lightningbus.learner.accounting import ExcludedRollouts, update_metrics
from lightningbus.learner.batching.batch import Batch, BatchBuilder
from lightningbus.learner.batching.rollout_dispositions import (
    STALE,
    build_spans,
    find_tasks_to_replace,
    quarantine_reasons,
)
from lightningbus.learner.batching.unbuildable import UnbuildableBatches, exclude_group, find_culprits
from lightningbus.learner.checkpointing.checkpoint import LearnerState
from lightningbus.learner.checkpointing.resume import skip_versions
from lightningbus.learner.checkpointing.step_committer import InThread, StepCommitter
from lightningbus.learner.checkpointing.step_replay import StepReplay, describe_step
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.dispatch.loss_recovery import LossRecovery
from lightningbus.learner.dispatch.slow_groups import SlowGroups
from lightningbus.learner.errors import LearnerError, as_learner_error
from lightningbus.learner.group_gate import GroupGate
from lightningbus.learner.mismatch import PolicyAgreement
from lightningbus.learner.publishing.publisher import NONCE_BYTES
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.fresh_node import wait_for_version
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.own_function import OwnFunctionError
from lightningbus.learner.teacher.teachers import Teachers
from lightningbus.learner.trainer import Trainer
from lightningbus.learner.training_alerts import TrainingAlerts
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import encode
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.training import RolloutDisposition, TrainingStep

log = logging.getLogger(__name__)


@dataclass
class TrainingLoop:
    """Trains until the last step; an interrupted step is lost, and training resumes from the last checkpoint."""

    bus: Bus
    settings: LearnerSettings
    state: LearnerState
    consumer: RolloutConsumer
    dispatcher: Dispatcher
    recovery: LossRecovery
    builder: BatchBuilder
    trainer: Trainer
    committer: StepCommitter
    excluded: ExcludedRollouts
    nodes: Fleet
    audits: AuditLog
    in_thread: InThread
    teachers: Teachers | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the loop is to end between two steps, with a checkpoint."""
    replay: StepReplay = field(default_factory=StepReplay)
    """Steps since the checkpoint, which are repeated first."""
    last_event: TrainingStep | None = None
    phase: str = "waiting"
    missing_version: int | None = None
    """Version that a node must serve before training continues; None: training does not wait for one."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    _is_scoring: bool = False
    """Whether the groups of the next step are taken, and wait for scores."""
    _unbuildable: UnbuildableBatches = field(default_factory=UnbuildableBatches)

    def __post_init__(self) -> None:
        self.agreement = PolicyAgreement(self.settings)
        self.slow_groups = SlowGroups(self.dispatcher, self.settings)
        self.alerts = TrainingAlerts(self.bus, self.settings)
        self.gate = GroupGate(self.bus, self.settings, self.dispatcher, self.excluded, self.builder, self.in_thread)

    async def run(self) -> None:
        """Train until `max_steps`, then publish the dispositions of rollouts that came too late.

        End before, with a checkpoint of the last step, if that is asked for.
        """
        while self.state.step < self.settings.max_steps:
            if self._is_ending:
                await self.committer.writer.wait()
                await self._write_checkpoint(self.state)
                log.info("asked to end between two steps: the checkpoint of step %d is written", self.state.step)
                return
            waited_since = time.monotonic()
            self.phase = "waiting"
            with tracing.start_as_current_span("step", {attributes.RUN: self.settings.run}) as span:
                with tracing.start_as_current_span("wait"):
                    groups = await self._next_groups()
                    if groups is None:
                        continue
                    if self.teachers is not None:
                        self._is_scoring = True
                        try:
                            await self.teachers.score(groups)
                        finally:
                            self._is_scoring = False
                self.phase = "training"
                await self._train_on(groups, time.monotonic() - waited_since)
                span.set_attributes({attributes.STEP: self.state.step, attributes.WEIGHT_VERSION: self.state.version})
        await self.committer.writer.wait()
        await self._publish_remaining()

    async def publish_step(self, event: TrainingStep, part: str = "", unique: bool = False) -> None:
        """Publish the event of a step; ``part`` tells further events of the same step apart."""
        msg_id = ids.step_msg_id(event.run_id, event.epoch, event.step, self.state.nonce) + part
        await self.bus.publish(subjects.TRAINING_STEP, event, msg_id=msg_id, timeout=math.inf, unique=unique)

    def checkpoint_state(self, state: LearnerState, trained: Container[str] = ()) -> LearnerState:
        """Complete ``state`` with all that a learner needs to resume from here; ``trained`` are tasks of this step."""
        position = self.consumer.replay_position()
        return replace(
            state,
            stream_position=position,
            stream_mark=self.recovery.mark,
            consumed_executions=self.consumer.consumed_since(position),
            closed_groups=self.consumer.groups.released_tasks(),
            groups_dispatched=self.dispatcher.num_dispatched,
            groups_by_others=self.dispatcher.num_by_others,
            outstanding=self.dispatcher.outstanding(trained),
            task_results=self.dispatcher.selector.snapshot(),
            journal_mark=self.committer.journal.add_mark(self.replay.steps),
            step_fields=self.settings.step_fields,
        )

    def end_between_steps(self) -> None:
        """Let `run` end after the step in progress, and after steps that are made again."""
        self.ending.set()
        self.consumer.attempt_ended.set()

    @property
    def _is_ending(self) -> bool:
        return self.ending.is_set() and not self.replay  # steps are made again under the settings of the first time

    async def _next_groups(self) -> list[RolloutGroup] | None:
        """Wait for the groups of the next step; return None if the loop is to end first."""
        while self.settings.groups_per_step:
            self.consumer.attempt_ended.clear()  # first of all: what ends from here on is looked at again
            if self._is_ending:
                return None
            seconds_left = self.consumer.expire()
            self.consumer.groups.drop(self.dispatcher.take_surplus())
            await self.dispatcher.replace_dropped(self.excluded.collect())
            if verdict := self.excluded.streaks.verdict:
                await self._write_checkpoint(self.state)  # a learner that goes on later does not count them again
                raise LearnerError(verdict)
            await self._slow_down()
            if self.replay and self.consumer.has_caught_up and not self.replay.is_ready(self.consumer.groups):
                await self._go_on_without_replay("rollouts of theirs are not on the bus any more")
            groups = await self._pop_groups()
            metrics.groups_ready.set(len(self.consumer.groups.ready))
            if groups:
                self.dispatcher.start_batch(group.task_id for group in groups)
                return groups
            await self._checkpoint_if_filling()
            self.dispatcher.wake()
            waits = [seconds_left, self.slow_groups.seconds_left]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min((wait for wait in waits if wait is not None), default=None)):
                    await self.consumer.attempt_ended.wait()
        return []

    async def _pop_groups(self) -> list[RolloutGroup]:
        """Take the groups of the next step; return none if they are not ready."""
        groups = self.consumer.groups
        if self.replay:
            return self.replay.take(groups)
        await self.gate.set_aside(groups)
        await self._try_alone(groups)
        return groups.pop_ready(self.settings.groups_per_step, self._choose)

    async def _try_alone(self, groups: GroupBuffer) -> None:
        """Build ready groups by themselves until one of their set can be trained: a whole step may never be ready."""
        for group in list(groups.ready):
            if not self.excluded.streaks.needs_trial(group.task_id):
                continue
            place = groups.take(group)
            if await self._build_batch([group]) is None:
                self.consumer.attempt_ended.set()  # The streak is longer now, and the task has a place again.
            else:
                self.excluded.streaks.end(group.task_id)
                groups.insert(group, place)

    def _choose(self, ready: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        """Choose the groups to train next; one that waits for a teacher counts as one that waits for a rollout."""
        closed = self.consumer.groups.closed.keys()
        if self.teachers is not None and (waiting := self.teachers.find_waiting(ready)):
            ready = [group for group in ready if group.task_id not in waiting]
            return self.slow_groups.choose(ready, closed - waiting)
        return self.slow_groups.choose(ready, closed)

    @property
    def is_waiting_for_scores(self) -> bool:
        """Whether training waits for a teacher, and for nothing else: with its scores the next step would begin."""
        if self.teachers is None or self.phase != "waiting":
            return False
        if self._is_scoring:
            return True
        ready = self.consumer.groups.ready
        waiting = self.teachers.find_waiting(ready)
        if not waiting.isdisjoint(self.slow_groups.awaited):
            return True
        return len(ready) - len(waiting) < self.settings.groups_per_step <= len(ready)

    @property
    def missing_served_version(self) -> int | None:
        """Version that a node must serve before training or dispatching continues; None: neither waits for one."""
        return self.missing_version if self.missing_version is not None else self.dispatcher.missing_version

    def abandon_replay(self) -> None:
        """Give up repeating steps: their groups are trained as any other."""
        groups = {trained.task_id: trained.group for trained in self.replay.abandon() if trained.group is not None}
        self.consumer.groups.members_at_close = {}
        self.dispatcher.requeue(groups, self.consumer.groups.ended_rollouts())

    async def _go_on_without_replay(self, reason: str, dropped: Sequence[str] = ()) -> None:
        """Give the present weights a version number that no others had, and write a checkpoint.

        Tasks in ``dropped`` are not trained, and dispatched again.
        """
        steps = self.replay.steps
        newest = max(self.committer.published_version, *(step.version for step in steps))
        log.warning("%d steps cannot be made again: %s; goes on from step %d", len(steps), reason, self.state.step)
        self.abandon_replay()
        await self.dispatcher.replace_dropped(dropped)
        await self._write_checkpoint(replace(self.state, version=skip_versions(self.state.version, newest)))
        self.dispatcher.advance(self.state.step, self.state.version)

    async def _slow_down(self) -> None:
        """Dispatch the groups of a set one by one while they give nothing: they cost what rollouts cost."""
        self.dispatcher.limit_rates(self.excluded.streaks.pauses)
        await self.alerts.update(self.excluded.streaks.problems)

    async def _train_on(self, groups: list[RolloutGroup], idle_seconds: float) -> None:
        started_ns = time.time_ns()  # before verdicts are read: a step that starts after a verdict knows it
        rollouts = {rollout.id: rollout for group in groups for rollout in group.rollouts}
        built = await self._build_batch(groups)
        if built is None:
            return
        batch, digest = built
        try:
            with tracing.start_as_current_span("train"):
                step_metrics = await self.in_thread(self.trainer.step, batch)
        except OwnFunctionError as error:
            raise as_learner_error(error) from error
        except Exception as error:
            if not self.trainer.can_go_on:
                raise
            await self._exclude_unbuildable(groups, error)
            return
        self.agreement.check({**batch.metrics, **step_metrics})
        self._unbuildable.end()
        self.excluded.streaks.add_batch(batch.dispositions)
        state = replace(
            self.state,
            step=self.state.step + 1,
            version=self.state.version + 1,
            nonce=secrets.token_hex(NONCE_BYTES),
        )
        ended_ns = time.time_ns()
        idle_share = idle_seconds / (idle_seconds + (ended_ns - started_ns) / 1e9)
        idle = {"seconds/idle": idle_seconds, "learner/idle_share": idle_share}
        event = TrainingStep(
            run_id=state.run_id, model=state.model, step=state.step, version=state.version, epoch=state.epoch,
            started_ns=started_ns, ended_ns=ended_ns, rollouts=(*batch.dispositions, *self.excluded.drain()),
            metrics={**batch.metrics, **step_metrics, **self.recovery.status(), **self.gate.end_step(), **idle},
            batch_sha256=digest,
            settings=self.settings.model_dump_json(), spans=(),
        )  # fmt: skip
        await self._commit(state, replace(event, spans=build_spans(event, rollouts)), groups, rollouts)

    async def _build_batch(self, groups: Sequence[RolloutGroup]) -> tuple[Batch, str] | None:
        """Build the batch of these groups, with its digest; None: it gives nothing to train on, and is dropped."""
        with contextlib.suppress(BusError, NatsError):  # While the bus is away, the verdicts known before count.
            await self.audits.refresh()
        try:
            with tracing.start_as_current_span("batch"):
                batch, digest = await self.in_thread(self._build, groups)
        except OwnFunctionError as error:
            raise as_learner_error(error) from error
        except Exception as error:  # whatever the rollouts lead to, they lead to it again
            await self._exclude_unbuildable(groups, error)
            return None
        if groups and not batch.num_tokens:
            await self._drop_batch(batch.dispositions, groups)
            return None
        return batch, digest

    def _build(self, groups: Sequence[RolloutGroup]) -> tuple[Batch, str]:
        """Build the batch of these groups; return it with its digest."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        quarantined = quarantine_reasons(rollouts, self.audits.state.verdicts, self.settings.model)
        batch = self.builder.build(groups, self.state.version, quarantined, self.state.step)
        return batch, batch.compute_sha256()

    async def _exclude_unbuildable(self, groups: Sequence[RolloutGroup], error: Exception) -> None:
        """Exclude the groups that no batch can be made of, all if each could be one; the others are ready again.

        Raises `LearnerError` if that happened too often in a row: it is no fault of the rollouts then.
        """
        count_fault("groups are excluded, because their batch cannot be built", error)
        errors = await self.in_thread(find_culprits, self._build, groups, error)
        culprits = [group for group in groups if group.task_id in errors]
        if len(culprits) == len(groups):
            self._unbuildable.add(error)
        self.consumer.groups.requeue(group for group in groups if group not in culprits)
        excluded = [exclude_group(group, errors[group.task_id], self.settings) for group in culprits]
        await self._drop_batch([disposition for dispositions in excluded for disposition in dispositions], culprits)

    async def _drop_batch(self, dispositions: Sequence[RolloutDisposition], groups: Sequence[RolloutGroup]) -> None:
        """Record that nothing of these groups is trained, and dispatch their tasks again."""
        reasons = {disposition.exclusion_reason for disposition in dispositions}
        log.warning("%d groups gave nothing to train on: %s", len(groups), ", ".join(sorted(reasons)))
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self.excluded.add_batch(dispositions, rollouts)
        self.dispatcher.start_batch(())
        tasks = [group.task_id for group in groups]
        if self.replay:
            await self._go_on_without_replay("nothing of a batch can be trained now", tasks)
        if reasons == {STALE}:  # else the same old weights would sample as many more, without end
            self.missing_version = self.state.version - self.settings.max_staleness
            await wait_for_version(self.nodes, self.settings.model, self.missing_version)
            self.missing_version = None
        await self.dispatcher.replace_dropped(tasks)

    async def _commit(
        self, state: LearnerState, event: TrainingStep, groups: list[RolloutGroup], rollouts: dict[str, Rollout]
    ) -> None:
        """Publish the version, begin the checkpoint if one is due, publish the step: in this order."""
        self.consumer.mark_consumed(rollouts.values())
        await self.dispatcher.replace_dropped(find_tasks_to_replace(event.rollouts))
        trained = {group.task_id for group in groups}
        self.gate.add_results(groups)
        if not self.replay.complete(state.version):
            self.committer.journal.append(describe_step(state.version, groups, self.dispatcher.find_group))
        self.committer.schedule.add_step((event.ended_ns - event.started_ns) / 1e9)
        is_due = self.committer.is_checkpoint_due(state.step, await self._is_stream_filling())
        if is_due:
            state = self.checkpoint_state(replace(state, last_step_event=encode(event)), trained)
        with tracing.start_as_current_span("publish"):
            await self.committer.commit(state, self.consumer.acknowledge if is_due else None)
        self.state, self.last_event, self.last_metrics = state, event, event.metrics
        update_metrics(event)
        await self.publish_step(event, unique=True)
        await self.recovery.resolve()
        self.alerts.add_step(event.metrics)
        await self.alerts.update(self.excluded.streaks.problems)
        num_ahead = len(self.replay)
        self.dispatcher.advance(state.step + num_ahead, state.version + num_ahead, trained)
        name = "reward/mean" if groups else "actor/loss"
        log.info("step %d/%d: %s %.3f", state.step, self.settings.max_steps, name, event.metrics[name])

    async def _is_stream_filling(self) -> bool:
        with contextlib.suppress(BusError, NatsError):  # the bus is away: as full as it was before
            await self.consumer.fill.refresh()
        return self.consumer.fill.is_filling

    async def _checkpoint_if_filling(self) -> None:
        """Write a checkpoint between two steps if rollouts that are not trained on fill the stream."""
        if not self.consumer.fill.is_filling or self.committer.writer.is_writing:
            return
        if self.consumer.replay_position() > self.consumer.acked_up_to:
            await self._write_checkpoint(self.state)
            await self._is_stream_filling()
            log.info("checkpoint between two steps: the stream was filling")

    async def _write_checkpoint(self, state: LearnerState) -> None:
        """Write a checkpoint of ``state`` between two steps, and acknowledge the rollouts left out before it."""
        state = self.checkpoint_state(state)
        dispositions = self.excluded.drain()
        if self.last_event is not None:
            state = replace(state, last_step_event=encode(self.last_event))
            event = replace(self.last_event, rollouts=tuple(dispositions), spans=())
            await self.publish_step(event, f"-{state.stream_position}")
        else:
            self.excluded.add(dispositions, [])  # the first step reports them
        await self.committer.write_checkpoint(state)
        self.state = state
        await self.consumer.acknowledge(state.stream_position)

    async def _publish_remaining(self) -> None:
        """Report the rollouts that ended after the last step was built."""
        self.excluded.collect_remaining()
        dispositions = tuple(self.excluded.drain())
        if dispositions and self.last_event is not None:
            await self.publish_step(replace(self.last_event, rollouts=dispositions, spans=()), "rest")
