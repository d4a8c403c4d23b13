"""The learner: consumes rollouts, dispatches tasks, trains, checkpoints, publishes versions."""

import asyncio
import contextlib
import logging
import math
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from nats.errors import Error as NatsError

from bus.client import Bus
from bus.errors import BusError
from bus.fleet.heartbeats import default_instance_id
from bus.fleet.node_state import is_ready
from bus.task_file import load_tasks
from common import disk_space
from common.aio import first_completed
from common.observability import metrics, tracing
from learner.accounting import ExcludedRollouts
from learner.batching.batch import STALE, BatchBuilder
from learner.batching.rollout_dispositions import build_spans
from learner.batching.tokenizer import find_vocabulary_size, load_detokenizer
from learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from learner.checkpointing.resume import initial_state
from learner.checkpointing.step_committer import StepCommitter
from learner.errors import LearnerError
from learner.publishing.broadcaster import Broadcaster
from learner.publishing.publisher import NONCE_BYTES, WeightPublisher, needs_full_weights
from learner.rollouts.capacity import find_shortage
from learner.rollouts.consumer import RolloutConsumer
from learner.rollouts.dispatcher import Dispatcher
from learner.rollouts.groups import RolloutGroup, in_dispatch_order
from learner.rollouts.loss_recovery import LossRecovery
from learner.settings.learner import LearnerSettings
from schemas import ids, subjects
from schemas.codec import decode, encode
from schemas.fleet import Heartbeat
from schemas.semconv import attributes
from schemas.training import TrainingStep

log = logging.getLogger(__name__)
T = TypeVar("T")


async def run(bus: Bus, settings: LearnerSettings, stop: asyncio.Event) -> None:
    """Train until the last step or until asked to stop.

    Raises `LearnerError`, `checkpoint.CheckpointError` or `bus.task_file.TaskFileError`.
    """
    if not (settings.model_path / "config.json").exists():
        raise LearnerError(f"model_path: {settings.model_path} holds no model (no config.json)")
    with Checkpoints(settings.checkpoint_dir).locked():
        await Learner(bus, settings).run(stop)


def run_worker(settings: LearnerSettings) -> None:
    """A rank beside the first, started by torchrun: does in the trainer what that one does, and nothing else."""
    from learner.training.trainer import Trainer

    for number in (signal.SIGTERM, signal.SIGINT):  # sent to all ranks; the first one finishes its step, then says so
        signal.signal(number, signal.SIG_IGN)
    Trainer(settings).run_worker()


class Learner:
    """One learner process; see the module."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._checkpoints = Checkpoints(settings.checkpoint_dir, settings.keep_last_checkpoints)
        self._nodes = bus.fleet("inference")
        self._broadcaster = Broadcaster(settings, self._nodes.members)
        self._publisher = WeightPublisher(bus, settings, self._full_weights_requested, self._broadcaster)
        self._thread = ThreadPoolExecutor(1, "trainer")  # one, because torch's thread count belongs to a thread
        self._consumer: RolloutConsumer
        self._excluded: ExcludedRollouts
        self._state_name = "starting"
        self._blocked_on = ""
        self._event: TrainingStep | None = None
        self._metrics: dict[str, float] = {}
        self._state = LearnerState(run_id=settings.run, model=settings.model)

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        name = default_instance_id(self._settings.id)
        async with self._nodes, self._bus.heartbeat("learner", name, self._describe) as pulse, self._broadcaster:
            try:
                await self._start()
                await first_completed(
                    self._consumer.run(),
                    self._dispatcher.run(),
                    self._train(),
                    self._recovery.run(),
                    self._publisher.wait_until_fenced(self._state.epoch),
                    self._publisher.keep_published(self._consumer.was_reset),
                    stop.wait(),
                )
                self._state_name = "done"
                await pulse.send_now()
                await self._in_thread(self._trainer.stop_workers)
            finally:
                # A step that was running is thrown away: the checkpoint before it is what counts.
                await asyncio.to_thread(self._thread.shutdown)

    async def _start(self) -> None:
        """Start anew or go on from the checkpoint, under an epoch of our own."""
        settings = self._settings
        problems = load_tasks(settings.tasks) if settings.tasks is not None else []
        last, checkpoint = await self._publisher.refresh(), self._checkpoints.latest()
        self._state = state = initial_state(checkpoint, last, settings)
        self._consumer = RolloutConsumer(
            self._bus,
            settings,
            state.stream_position,
            state.consumed_executions,
            state.closed_groups,
            state.stream_mark,
        )
        await self._check_capacity()
        try:
            await self._in_thread(self._load_trainer, checkpoint[0] / TRAINER if checkpoint else None)
            self._committer = StepCommitter(
                settings, self._trainer, self._publisher, self._checkpoints, self._in_thread
            )
        except ValueError as error:
            raise LearnerError(str(error)) from error
        self._excluded = ExcludedRollouts(self._consumer, settings)
        await self._committer.publish_base()
        self._dispatcher = Dispatcher(self._bus, problems, settings, state.groups_dispatched)
        await self._dispatcher.restore(state.outstanding)
        self._recovery = LossRecovery(self._bus, self._consumer, self._dispatcher)
        if checkpoint is None:
            await self._consumer.find_position()  # so that the first checkpoint, too, knows which stream it is of
        path = (
            checkpoint[0]
            if checkpoint
            else await self._committer.write_initial_checkpoint(self._checkpoint_state(state))
        )
        self._state = state = await self._committer.claim_epoch(path, checkpoint, state)
        metrics.learner_weight_version.set(state.version)
        if state.last_step_event:
            self._event = decode(TrainingStep, state.last_step_event)
            await self._publish_step(self._event)
        if checkpoint is not None:
            log.info("goes on at step %d, version %d, epoch %d", state.step, state.version, state.epoch)
        self._dispatcher.update_limit(state.step, state.groups_dropped)

    async def _check_capacity(self) -> None:
        short = find_shortage(self._settings, await self._consumer.fill.capacity())
        if short.step:
            raise LearnerError(short.step)
        if short.interval:
            log.warning("%s; until then checkpoints are written as the stream fills", short.interval)

    def _load_trainer(self, checkpoint: Path | None) -> None:
        from learner.training.trainer import (
            Trainer,
        )  # takes seconds to import: not before the settings are known to be right

        model = self._settings.model_path
        self._maker = BatchBuilder(self._settings, load_detokenizer(model), find_vocabulary_size(model))
        self._trainer = Trainer(self._settings)
        if checkpoint is not None:
            self._trainer.load(checkpoint)

    async def _train(self) -> None:
        while self._state.step < self._settings.max_steps:
            waited = time.monotonic()
            self._state_name = "waiting"
            with tracing.start_as_current_span("step", {attributes.RUN: self._settings.run}) as traced:
                with tracing.start_as_current_span("wait"):
                    groups = await self._next_groups()
                self._state_name = "training"
                await self._step(groups, time.monotonic() - waited)
                traced.set_attributes(
                    {attributes.STEP: self._state.step, attributes.WEIGHT_VERSION: self._state.version}
                )
        await self._publish_remaining()

    async def _next_groups(self) -> list[RolloutGroup]:
        while True:
            left = self._consumer.expire()
            self._replace_dropped_groups(self._excluded.collect())
            groups = self._consumer.groups.pop_ready(self._settings.groups_per_step, self._order_groups)
            metrics.groups_ready.set(len(self._consumer.groups.ready))
            if groups:
                return groups
            await self._checkpoint_if_filling()
            self._consumer.attempt_ended.clear()
            try:
                async with asyncio.timeout(left):
                    await self._consumer.attempt_ended.wait()
            except TimeoutError:
                continue

    async def _checkpoint_if_filling(self) -> None:
        """A checkpoint between two steps, where what came to nothing fills the bus."""
        if not self._consumer.fill.is_filling or self._consumer.replay_position() <= self._consumer.acked_up_to:
            return
        state = self._checkpoint_state(self._state)
        uses = self._excluded.drain()
        if self._event is not None:
            state = replace(state, last_step_event=encode(self._event))
            await self._publish_step(replace(self._event, rollouts=tuple(uses), spans=()), f"-{state.stream_position}")
        else:
            self._excluded.add(uses, [])  # the first step will say it
        await self._committer.write_checkpoint(state)
        self._state = state
        await self._consumer.acknowledge(state.stream_position)
        await self._is_stream_filling()
        log.info("checkpoint between two steps: the bus was filling")

    def _order_groups(self, ready: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
        if not self._dispatcher.dispatch_order:
            return ready
        return in_dispatch_order(ready, self._dispatcher.dispatch_order, self._consumer.groups.closed)

    async def _publish_remaining(self) -> None:
        """What came after the last step was made is said to be unused, too."""
        self._excluded.collect_remaining()
        uses = tuple(self._excluded.drain())
        if uses and self._event is not None:
            await self._publish_step(replace(self._event, rollouts=uses, spans=()), "rest")

    def _replace_dropped_groups(self, tasks: Sequence[str]) -> None:
        """The groups of these tasks came to nothing: as many more are dispatched."""
        if not tasks:
            return
        self._dispatcher.release(tasks)
        self._state = replace(self._state, groups_dropped=self._state.groups_dropped + len(tasks))
        self._dispatcher.update_limit(self._state.step, self._state.groups_dropped)

    async def _wait_for_fresh_node(self) -> None:
        """Wait for a node that serves what is not too old to learn from."""
        oldest = self._state.version - self._settings.max_staleness
        self._blocked_on = f"a node that serves version {oldest} or a newer one"
        while not any(self._serves(beat, oldest) for beat in self._nodes.members()):
            await self._nodes.wait_for_change()
        self._blocked_on = ""

    def _serves(self, beat: Heartbeat, oldest: int) -> bool:
        return is_ready(beat.state) and beat.model == self._settings.model and (beat.version or 0) >= oldest

    async def _step(self, groups: list[RolloutGroup], idle: float) -> None:
        started_ns = time.time_ns()
        rollouts = {rollout.id: rollout for group in groups for rollout in group.rollouts}
        try:
            with tracing.start_as_current_span("batch"):
                batch = await self._in_thread(self._maker.build, groups, self._state.version)
        except ValueError as error:  # what a credit function of the user's own gave
            raise LearnerError(str(error)) from error
        if not batch.sequences:
            log.warning(
                "%d groups gave nothing to train on: %s",
                len(groups),
                {use.exclusion_reason for use in batch.dispositions},
            )
            self._excluded.add(batch.dispositions, rollouts.values())
            if {use.exclusion_reason for use in batch.dispositions} == {STALE}:
                await self._wait_for_fresh_node()  # else as many more would come from the same old weights, without end
            self._replace_dropped_groups([group.task_id for group in groups])
            return
        with tracing.start_as_current_span("train"):
            step_metrics = await self._in_thread(self._trainer.step, batch)
        step, version, nonce = self._state.step + 1, self._state.version + 1, secrets.token_hex(NONCE_BYTES)
        state = replace(self._state, step=step, version=version, nonce=nonce)
        event = TrainingStep(
            run_id=state.run_id,
            model=state.model,
            step=state.step,
            version=state.version,
            epoch=state.epoch,
            started_ns=started_ns,
            ended_ns=time.time_ns(),
            rollouts=(*batch.dispositions, *self._excluded.drain()),
            metrics={**batch.metrics, **step_metrics, **self._recovery.status(), "seconds/idle": idle},
            batch_sha256=await self._in_thread(batch.compute_sha256),
            settings=self._settings.model_dump_json(),
            spans=(),
        )
        event = replace(event, spans=build_spans(event, rollouts))
        self._metrics = event.metrics
        self._consumer.mark_consumed(rollouts.values())
        self._dispatcher.release(group.task_id for group in groups)
        written = self._committer.is_checkpoint_due(state.step, await self._is_stream_filling())
        if written:
            state = self._checkpoint_state(replace(state, last_step_event=encode(event)))
        with tracing.start_as_current_span("publish"):
            await self._committer.commit(state, written)
        self._state, self._event = state, event
        _update_metrics(event)
        if written:
            await self._consumer.acknowledge(state.stream_position)
        await self._publish_step(event, unique=True)
        await self._recovery.resolve()
        self._dispatcher.update_limit(state.step, state.groups_dropped)
        log.info("step %d/%d: reward %.3f", state.step, self._settings.max_steps, batch.metrics["reward/mean"])

    async def _is_stream_filling(self) -> bool:
        with contextlib.suppress(BusError, NatsError):  # as it was a second ago, then
            await self._consumer.fill.refresh()
        return self._consumer.fill.is_filling

    def _checkpoint_state(self, state: LearnerState) -> LearnerState:
        """The state with all that a learner needs to go on from here."""
        position = self._consumer.replay_position()
        return replace(
            state,
            stream_position=position,
            stream_mark=self._recovery.mark,
            consumed_executions=self._consumer.consumed_since(position),
            closed_groups=self._consumer.groups.released_tasks(),
            groups_dispatched=self._dispatcher.dispatched,
            outstanding=self._dispatcher.outstanding,
        )

    async def _publish_step(self, event: TrainingStep, part: str = "", unique: bool = False) -> None:
        msg_id = ids.step_msg_id(event.run_id, event.epoch, event.step, self._state.nonce) + part
        await self._bus.publish(subjects.TRAINING_STEP, event, msg_id=msg_id, timeout=math.inf, unique=unique)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _full_weights_requested(self) -> bool:
        return any(needs_full_weights(beat, self._settings.model) for beat in self._nodes.members())

    def _disk_problem(self) -> str:
        try:
            free = disk_space.free_bytes(self._settings.checkpoint_dir)
        except OSError as error:
            return f"the disk of the checkpoints cannot be looked at: {error.strerror}"
        return disk_space.record_free("checkpoints", free, self._settings.disk_free_mib)

    def _describe(self) -> dict[str, Any]:
        detail: dict[str, Any] = {"step": self._state.step, "steps": self._settings.max_steps}
        if self._metrics:
            detail["reward"] = self._metrics["reward/mean"]
            detail["staleness"] = self._metrics["staleness/mean"]
        if short := self._disk_problem():
            detail["disk"] = short
        if self._blocked_on:
            detail["waits for"] = self._blocked_on
        if self._state_name == "waiting":
            detail["groups"] = f"{len(self._consumer.groups.ready)}/{self._settings.groups_per_step}"
        return {
            "run_id": self._settings.run,
            "state": self._state_name,
            "model": self._settings.model,
            "version": self._state.version,
            "status": detail,
        }


def _update_metrics(event: TrainingStep) -> None:
    """What a step did, as metrics."""
    metrics.steps.inc()
    metrics.step_duration.observe((event.ended_ns - event.started_ns) / 1e9)
    metrics.learner_idle.inc(event.metrics["seconds/idle"])
    metrics.learner_weight_version.set(event.version)
    metrics.reward_mean.set(event.metrics["reward/mean"])
    metrics.staleness.set(event.metrics["staleness/mean"])
    metrics.trained_tokens.inc(event.metrics["tokens"])
    for use in event.rollouts:
        metrics.learner_rollouts.labels("trained" if use.trained else "excluded").inc()
