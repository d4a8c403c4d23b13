"""The training loop: takes groups, trains on them, commits each step and publishes what became of every rollout."""

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

from bus.client import Bus
from bus.errors import BusError
from bus.fleet.heartbeats import Fleet
from bus.fleet.node_state import is_ready
from bus.weights.audit_log import AuditLog
from common.observability import metrics, tracing
from learner.accounting import ExcludedRollouts
from learner.batching.batch import Batch, BatchBuilder
from learner.batching.batch_warnings import find_warnings
from learner.batching.rollout_dispositions import STALE, build_spans, find_tasks_to_replace, quarantine_reasons
from learner.checkpointing.checkpoint import LearnerState
from learner.checkpointing.step_committer import InThread, StepCommitter
from learner.errors import LearnerError, as_learner_error
from learner.publishing.publisher import NONCE_BYTES
from learner.rollouts.assembler import Rollout
from learner.rollouts.consumer import RolloutConsumer
from learner.rollouts.dispatcher import Dispatcher
from learner.rollouts.groups import RolloutGroup, in_dispatch_order
from learner.rollouts.loss_recovery import LossRecovery
from learner.settings.learner import LearnerSettings
from learner.settings.own_function import OwnFunctionError
from learner.training.trainer import Trainer
from schemas import ids, subjects
from schemas.audit import AuditVerdict
from schemas.codec import encode
from schemas.fleet import Heartbeat
from schemas.semconv import attributes
from schemas.training import TrainingStep

log = logging.getLogger(__name__)


@dataclass
class TrainingLoop:
    """Trains until the last step; a step that is interrupted is lost, and the last checkpoint counts."""

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
    last_event: TrainingStep | None = None
    phase: str = "waiting"
    missing_version: int | None = None
    """The version that a node must serve before training goes on, if it waits for that."""
    awaited: list[str] = field(default_factory=list)
    """Tasks of slow groups that the next step waits for."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    _waits_since: float | None = None
    _warned: set[str] = field(default_factory=set)
    _is_slow: bool = False

    async def run(self) -> None:
        """Train until `max_steps`, then publish what became of the rollouts that came too late."""
        while self.state.step < self.settings.max_steps:
            waited_since = time.monotonic()
            self.phase = "waiting"
            with tracing.start_as_current_span("step", {attributes.RUN: self.settings.run}) as span:
                with tracing.start_as_current_span("wait"):
                    groups = await self._next_groups()
                self.phase = "training"
                await self._train_on(groups, time.monotonic() - waited_since)
                span.set_attributes({attributes.STEP: self.state.step, attributes.WEIGHT_VERSION: self.state.version})
        await self._publish_remaining()

    @property
    def blocked_on(self) -> str:
        """What the loop waits for, if it is not any rollout; empty: it is."""
        if self.awaited:
            return f"{len(self.awaited)} slow groups, which the next step would put beyond max_staleness"
        version = self.missing_version if self.missing_version is not None else self.dispatcher.missing_version
        return "" if version is None else f"a node that serves version {version} or a newer one"

    async def publish_step(self, event: TrainingStep, part: str = "", unique: bool = False) -> None:
        """Publish the event of a step; ``part`` tells further events of the same step apart."""
        msg_id = ids.step_msg_id(event.run_id, event.epoch, event.step, self.state.nonce) + part
        await self.bus.publish(subjects.TRAINING_STEP, event, msg_id=msg_id, timeout=math.inf, unique=unique)

    def checkpoint_state(self, state: LearnerState, trained: Container[str] = ()) -> LearnerState:
        """The state with everything a learner needs to continue from here; ``trained`` are tasks of this step."""
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
        )

    async def _next_groups(self) -> list[RolloutGroup]:
        while True:
            seconds_left = self.consumer.expire()
            self.consumer.groups.drop(self.dispatcher.take_surplus())
            await self.dispatcher.replace_dropped(self.excluded.collect())
            if verdict := self.excluded.streak.verdict:
                await self._checkpoint_between_steps()  # a learner that goes on later does not count them again
                raise LearnerError(verdict)
            self._slow_down()
            self.consumer.groups.drop(self.dispatcher.find_replacements_of_others(self.consumer.groups.ready))
            groups = self.consumer.groups.pop_ready(self.settings.groups_per_step, self._choose_groups)
            metrics.groups_ready.set(len(self.consumer.groups.ready))
            if groups:
                self.dispatcher.start_batch(group.task_id for group in groups)
                return groups
            await self._checkpoint_if_filling()
            self.dispatcher.wake()
            self.consumer.attempt_ended.clear()
            waits = [seconds_left, self._seconds_to_go_on()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min((wait for wait in waits if wait is not None), default=None)):
                    await self.consumer.attempt_ended.wait()

    def _slow_down(self) -> None:
        """Dispatch groups one by one while they give nothing: they cost what rollouts cost."""
        streak = self.excluded.streak
        if streak.is_too_long and not self._is_slow:
            log.error("%s", streak.problem)
        elif self._is_slow and not streak.is_too_long:
            log.info("groups can be trained again")
        self._is_slow = streak.is_too_long
        self.dispatcher.limit_rate(streak.pause)

    def _choose_groups(self, ready: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        """The groups to train next, first those to take first; none while an older one is waited for."""
        dispatched = self.dispatcher.outstanding_tasks
        if self.settings.staleness.order == "dispatch" and dispatched:
            return in_dispatch_order(ready, dispatched, self.consumer.groups.closed)
        chosen = self.dispatcher.order_by_deadline(ready)[: self.settings.groups_per_step]
        return [] if self._must_wait({group.task_id for group in chosen}) else chosen

    def _must_wait(self, batch: set[str]) -> bool:
        """Whether a step without slow groups would leave them beyond the bound, and they may still be waited for."""
        self.awaited = self.dispatcher.find_awaited(batch) if len(batch) == self.settings.groups_per_step else []
        if not self.awaited:
            self._waits_since = None
            return False
        self._waits_since = self._waits_since or time.monotonic()
        if self._seconds_to_go_on() != 0:
            return True
        log.warning("training waits no longer for %d slow groups, and will train them late", len(self.awaited))
        self.dispatcher.give_up(self.awaited)
        self.awaited, self._waits_since = [], None
        return False

    def _seconds_to_go_on(self) -> float | None:
        """Seconds until slow groups are waited for no longer; None: there are none."""
        if self._waits_since is None:
            return None
        limit = self.settings.staleness.max_wait_seconds
        limit = self.settings.max_group_seconds if limit is None else limit
        return max(0.0, self._waits_since + limit - time.monotonic())

    async def _train_on(self, groups: list[RolloutGroup], idle_seconds: float) -> None:
        started_ns = time.time_ns()  # before verdicts are read: a step that starts after a verdict knows it
        rollouts = {rollout.id: rollout for group in groups for rollout in group.rollouts}
        quarantined = quarantine_reasons(rollouts.values(), await self._refresh_verdicts(), self.settings.model)
        try:
            with tracing.start_as_current_span("batch"):
                batch: Batch = await self.in_thread(self.builder.build, groups, self.state.version, quarantined)
        except ValueError as error:  # raised by a credit function or an estimator
            raise as_learner_error(error) from error
        self._log_warnings(batch)
        if not batch.sequences:
            await self._drop_batch(batch, groups, rollouts)
            return
        with tracing.start_as_current_span("train"):
            try:
                step_metrics = await self.in_thread(self.trainer.step, batch)
            except OwnFunctionError as error:
                raise as_learner_error(error) from error
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
            run_id=state.run_id,
            model=state.model,
            step=state.step,
            version=state.version,
            epoch=state.epoch,
            started_ns=started_ns,
            ended_ns=ended_ns,
            rollouts=(*batch.dispositions, *self.excluded.drain()),
            metrics={**batch.metrics, **step_metrics, **self.recovery.status(), **idle},
            batch_sha256=await self.in_thread(batch.compute_sha256),
            settings=self.settings.model_dump_json(),
            spans=(),
        )
        await self._commit(state, replace(event, spans=build_spans(event, rollouts)), groups, rollouts)

    def _log_warnings(self, batch: Batch) -> None:
        """Each once."""
        for subject, sentence in find_warnings(batch.metrics, self.settings.credit.method).items():
            if subject not in self._warned:
                self._warned.add(subject)
                log.warning("%s", sentence)

    async def _refresh_verdicts(self) -> Sequence[AuditVerdict]:
        """The auditor's verdicts; those known before while the bus is away."""
        with contextlib.suppress(BusError, NatsError):
            await self.audits.refresh()
        return self.audits.state.verdicts

    async def _drop_batch(self, batch: Batch, groups: list[RolloutGroup], rollouts: dict[str, Rollout]) -> None:
        reasons = {disposition.exclusion_reason for disposition in batch.dispositions}
        log.warning("%d groups gave nothing to train on: %s", len(groups), reasons)
        self.excluded.add_batch(batch.dispositions, rollouts.values(), len(groups))
        if reasons == {STALE}:
            await self._wait_for_fresh_node()  # else the same old weights would sample as many more, without end
        await self.dispatcher.replace_dropped([group.task_id for group in groups])

    async def _wait_for_fresh_node(self) -> None:
        """Wait for a node that serves a version that is not too old to train on."""
        oldest = self.state.version - self.settings.max_staleness
        self.missing_version = oldest
        while not any(self._serves(beat, oldest) for beat in self.nodes.members()):
            await self.nodes.wait_for_change()
        self.missing_version = None

    def _serves(self, beat: Heartbeat, oldest: int) -> bool:
        return is_ready(beat.state) and beat.model == self.settings.model and (beat.version or 0) >= oldest

    async def _commit(
        self, state: LearnerState, event: TrainingStep, groups: list[RolloutGroup], rollouts: dict[str, Rollout]
    ) -> None:
        """Publish the version, write the checkpoint if one is due, acknowledge, publish the step: in this order."""
        self.last_metrics = event.metrics
        self.consumer.mark_consumed(rollouts.values())
        await self.dispatcher.replace_dropped(find_tasks_to_replace(event.rollouts))
        trained = {group.task_id for group in groups}
        is_written = self.committer.is_checkpoint_due(state.step, await self._is_stream_filling())
        if is_written:
            state = self.checkpoint_state(replace(state, last_step_event=encode(event)), trained)
        with tracing.start_as_current_span("publish"):
            await self.committer.commit(state, is_written)
        self.state, self.last_event = state, event
        self.excluded.streak.end()
        _update_metrics(event)
        if is_written:
            await self.consumer.acknowledge(state.stream_position)
        await self.publish_step(event, unique=True)
        await self.recovery.resolve()
        self.dispatcher.advance(state.step, state.version, trained)
        log.info("step %d/%d: reward %.3f", state.step, self.settings.max_steps, event.metrics["reward/mean"])

    async def _is_stream_filling(self) -> bool:
        with contextlib.suppress(BusError, NatsError):  # the bus is away: as full as it was before
            await self.consumer.fill.refresh()
        return self.consumer.fill.is_filling

    async def _checkpoint_if_filling(self) -> None:
        """Write a checkpoint between two steps if rollouts that are not trained on fill the stream."""
        if self.consumer.fill.is_filling and self.consumer.replay_position() > self.consumer.acked_up_to:
            await self._checkpoint_between_steps()
            await self._is_stream_filling()
            log.info("checkpoint between two steps: the stream was filling")

    async def _checkpoint_between_steps(self) -> None:
        """Write a checkpoint after which nothing is read again of what has been left out."""
        state = self.checkpoint_state(self.state)
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
        """Report what ended after the last step was built."""
        self.excluded.collect_remaining()
        dispositions = tuple(self.excluded.drain())
        if dispositions and self.last_event is not None:
            await self.publish_step(replace(self.last_event, rollouts=dispositions, spans=()), "rest")


def _update_metrics(event: TrainingStep) -> None:
    metrics.steps.inc()
    metrics.step_duration.observe((event.ended_ns - event.started_ns) / 1e9)
    metrics.learner_idle.inc(event.metrics["seconds/idle"])
    metrics.learner_weight_version.set(event.version)
    metrics.reward_mean.set(event.metrics["reward/mean"])
    metrics.staleness.set(event.metrics["staleness/mean"])
    metrics.trained_tokens.inc(event.metrics["tokens"])
    for disposition in event.rollouts:
        metrics.learner_rollouts.labels("trained" if disposition.trained else "excluded").inc()
