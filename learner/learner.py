"""The learner process: starts from nothing or a checkpoint, then runs the training loop and its helpers."""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.bus.fleet.node_state import DONE, SUSPECT_SECONDS, is_ready
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.common import disk_space
from lightningbus.common.aio import WorkInterruptedError, first_completed, run_unless
from lightningbus.common.observability import metrics
from lightningbus.learner.accounting import ExcludedRollouts
from lightningbus.learner.backend import make_builder, make_trainer, record_reference
from lightningbus.learner.batching.batch import BatchBuilder
from lightningbus.learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.resume import count_given_up, resume
from lightningbus.learner.checkpointing.step_committer import StepCommitter
from lightningbus.learner.checkpointing.step_replay import StepReplay
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.dispatch.loss_recovery import LossRecovery
from lightningbus.learner.errors import LearnerError, LearnerRestart, as_learner_error
from lightningbus.learner.publishing.broadcaster import Broadcaster
from lightningbus.learner.publishing.engine_checks import EngineChecks
from lightningbus.learner.publishing.pin_watch import PinWatch
from lightningbus.learner.publishing.publisher import WeightPublisher, needs_full_weights
from lightningbus.learner.rollouts.capacity import find_shortage
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.served_version import ServedVersion
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.settings.own_function import OwnFunctionError
from lightningbus.learner.teacher.teachers import Teachers
from lightningbus.learner.trainer import ModelProbe, Trainer
from lightningbus.learner.training_loop import TrainingLoop
from lightningbus.schemas.codec import decode
from lightningbus.schemas.training import TrainingStep
from lightningbus.tasks.task_loading import TaskInput, load_tasks

log = logging.getLogger(__name__)
T = TypeVar("T")
END_BETWEEN_STEPS = signal.SIGUSR1
"""Signal on which a learner finishes its step, writes a checkpoint and ends; Slurm sends it before a time limit."""


async def run(bus: Bus, settings: LearnerSettings, stop: asyncio.Event) -> None:
    """Train until the last step or until asked to stop.

    Raises `LearnerError`, `LearnerRestart`, `checkpoint.CheckpointError` or
    `lightningbus.tasks.errors.TaskFileError`.
    """
    if not (settings.model_path / "config.json").exists():
        raise LearnerError(f"model_path: {settings.model_path} holds no model (no config.json)")
    with Checkpoints(settings.checkpoint_dir).locked():
        await Learner(bus, settings).run(stop)


def run_worker(settings: LearnerSettings) -> None:
    """Run another rank than 0, started by torchrun: it makes the trainer calls of rank 0 and nothing else.

    Raises `LearnerError`.
    """
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # sent to all ranks; rank 0 stops the workers
        signal.signal(number, signal.SIG_IGN)
    try:
        make_trainer(settings).run_worker()
    except OwnFunctionError as error:
        raise as_learner_error(error) from error


class Learner:
    """One learner process."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._checkpoints = Checkpoints(settings.checkpoint_dir, settings.keep_last_checkpoints)
        self._nodes = bus.fleet("inference")
        self._served_version = ServedVersion(settings.model)
        self._broadcaster = Broadcaster(settings, self._nodes.members)
        self._publisher = WeightPublisher(bus, settings, self._full_weights_requested, self._broadcaster)
        self._pin_watch = PinWatch(bus, settings.model)
        self._thread = ThreadPoolExecutor(1, "trainer")  # one, because torch's thread count belongs to a thread
        self._initial_state = LearnerState(run_id=settings.run, model=settings.model)
        self._engine_checks = EngineChecks()
        self._loop: TrainingLoop | None = None
        self._trainer: Trainer | None = None
        self._teachers: Teachers | None = None
        self._started_at = 0.0
        self._is_leaving = False
        self._ending = asyncio.Event()
        self._repeats_only = False
        """Whether this start makes the steps since the checkpoint again, and no other."""

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        name, self._started_at = default_instance_id(self._settings.id), time.monotonic()
        asyncio.get_running_loop().add_signal_handler(END_BETWEEN_STEPS, self._end_between_steps)
        async with self._nodes, self._bus.heartbeat("learner", name, self._describe) as heartbeat, self._broadcaster:
            try:
                try:
                    loop = self._loop = await run_unless(stop.wait(), self._start())
                except WorkInterruptedError:  # a bus without room may hold up the first version for long
                    self._is_leaving = True
                    await heartbeat.send_now()
                    await self._in_thread(self._stop_workers)
                    return
                await first_completed(
                    loop.consumer.run(),
                    loop.dispatcher.run(),
                    loop.run(),
                    loop.recovery.run(),
                    loop.committer.writer.watch(),
                    self._watch_nodes(loop.dispatcher),
                    self._check_teachers(),
                    self._engine_checks.watch(self._bus, self._settings.model, self._nodes),
                    self._pin_watch.run(self._nodes, lambda: loop.missing_served_version),
                    self._publisher.wait_until_fenced(loop.state.epoch),
                    self._publisher.keep_published(loop.consumer.was_reset),
                    stop.wait(),
                )
                self._is_leaving = True
                await heartbeat.send_now()
                await loop.committer.writer.close()
                await self._in_thread(self._stop_workers)
                if self._repeats_only and not stop.is_set():
                    raise LearnerRestart(f"starting again at step {loop.state.step}, with other settings")
            finally:
                # A step that is interrupted is lost: the last checkpoint counts.
                if self._loop is not None:
                    await self._loop.committer.writer.abandon()
                if self._teachers is not None:
                    await self._teachers.close()
                await asyncio.to_thread(self._thread.shutdown)

    def _end_between_steps(self) -> None:
        self._ending.set()
        if self._loop is not None:
            self._loop.end_between_steps()

    async def _start(self) -> TrainingLoop:
        """Start from nothing or from the checkpoint, under our own epoch."""
        settings = self._settings
        task_inputs = load_tasks(settings.tasks) if settings.tasks is not None else []
        last, checkpoint, journal = (
            await self._publisher.refresh(),
            self._checkpoints.latest(),
            self._checkpoints.journal,
        )
        journal.load()
        records = journal.since(checkpoint[1].journal_mark) if checkpoint else ()
        begin = resume(checkpoint, last, settings, records)
        self._initial_state, replay = begin.state, StepReplay(begin.steps)
        state = begin.state
        if begin.step_fields is not None:
            log.info("%d steps are made again by their own settings; the present ones follow", len(begin.steps))
            settings = self._settings = settings.with_step_fields(begin.step_fields)
            self._repeats_only = True
            self._ending.set()
        consumer = RolloutConsumer(
            self._bus,
            settings,
            state.stream_position,
            state.consumed_executions,
            state.closed_groups,
            state.stream_mark,
        )
        consumer.groups.members_at_close = replay.find_members()
        await self._check_capacity(consumer)
        if settings.teachers:
            self._teachers = Teachers(settings, self._find_teacher, task_inputs, consumer.attempt_ended.set)
            consumer.on_rollout = self._teachers.begin
        try:
            builder, trainer, probe = await self._in_thread(
                self._load_trainer, checkpoint[0] / TRAINER if checkpoint else None
            )
            committer = StepCommitter(
                settings, trainer, self._publisher, self._checkpoints, self._in_thread, probe, self._engine_checks
            )
        except ValueError as error:
            raise as_learner_error(error) from error
        builder.bound_from(state.oldest_version)
        await committer.publish_base()
        if checkpoint is not None:  # nodes that start too may have chosen a version: they are to be known by now
            await asyncio.sleep(self._started_at + SUSPECT_SECONDS - time.monotonic())
        selector = self._make_selector(task_inputs, state)
        dispatcher = Dispatcher(
            self._bus,
            task_inputs,
            settings,
            state.groups_dispatched,
            self._oldest_served_version,
            consumer.groups.closed,
            consumer.attempt_ended.set,
            journal.record_group,
            selector,
            consumer.note_task,
        )
        dispatcher.advance(state.step + len(replay), state.version + len(replay))
        await dispatcher.restore(state.outstanding, state.groups_by_others)
        loop = TrainingLoop(
            bus=self._bus,
            settings=settings,
            state=state,
            consumer=consumer,
            dispatcher=dispatcher,
            recovery=LossRecovery(self._bus, consumer, dispatcher),
            builder=builder,
            trainer=trainer,
            committer=committer,
            excluded=ExcludedRollouts(consumer, settings),
            nodes=self._nodes,
            audits=AuditLog(self._bus, settings.model, from_leader=True),
            in_thread=self._in_thread,
            teachers=self._teachers,
            replay=replay,
            ending=self._ending,
        )
        if checkpoint is None:
            await consumer.find_position()  # the first checkpoint needs the stream's mark too
            path = await committer.write_initial_checkpoint(loop.checkpoint_state(state))
        else:
            path = checkpoint[0]
        loop.state = state = await committer.claim_epoch(path, checkpoint, state)
        if checkpoint is not None and (state.version, state.step_fields) != (
            checkpoint[1].version,
            checkpoint[1].step_fields,
        ):  # what follows is of no checkpoint yet
            if state.version != checkpoint[1].version:
                loop.abandon_replay()
            await committer.write_checkpoint(loop.checkpoint_state(state))
        metrics.learner_weight_version.set(state.version)
        await loop.alerts.restore()
        if checkpoint is not None and (num_steps := count_given_up(checkpoint[1].version, state.version)):
            await loop.alerts.announce(
                "steps_given_up", step=state.step, num_steps=num_steps, directory=settings.checkpoint_dir
            )
        if state.last_step_event:
            loop.last_event = decode(TrainingStep, state.last_step_event)
            await loop.publish_step(loop.last_event)
        if checkpoint is not None:
            log.info(
                "resumed at step %d, version %d, epoch %d; %d steps are made again",
                state.step, state.version, state.epoch, len(replay),
            )  # fmt: skip
        dispatcher.advance(state.step + len(replay), state.version + len(replay))
        return loop

    def _make_selector(self, task_inputs: Sequence[TaskInput], state: LearnerState) -> TaskSelector:
        try:
            selector = TaskSelector(task_inputs, self._settings)
        except ValueError as error:
            raise as_learner_error(error) from error
        selector.restore(state.task_results)
        return selector

    async def _check_capacity(self, consumer: RolloutConsumer) -> None:
        shortage = find_shortage(self._settings, await consumer.fill.capacity())
        if shortage.step:
            raise LearnerError(shortage.step)
        if shortage.interval:
            log.warning("%s; until then checkpoints are written as the stream fills", shortage.interval)

    def _load_trainer(self, checkpoint: Path | None) -> tuple[BatchBuilder, Trainer, ModelProbe | None]:
        builder, trainer = make_builder(self._settings), make_trainer(self._settings)
        self._trainer = trainer
        probe = trainer.check_model()
        record_reference(trainer, builder)
        if checkpoint is not None:
            trainer.load(checkpoint)
        return builder, trainer, probe

    def _stop_workers(self) -> None:
        if self._trainer is not None:
            self._trainer.stop_workers()

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _oldest_served_version(self) -> int | None:
        """Return the oldest version that nodes serve; without nodes the oldest that the first one may begin with."""
        return self._served_version.oldest(self._nodes.members(), time.monotonic(), self._publisher.next_served)

    def _find_teacher(self, teacher: TeacherSettings) -> str | None:
        """Return the address of a teacher: its URL, else that of a node which serves it; None: there is none."""
        if teacher.url is not None:
            return teacher.url
        nodes = [beat for beat in self._nodes.members() if beat.model == teacher.model and is_ready(beat.state)]
        return random.choice(nodes).address if nodes else None

    async def _check_teachers(self) -> None:
        """Check the teachers once each; end only by an error."""
        if self._teachers is not None:
            await self._teachers.check()
        await asyncio.Event().wait()

    async def _watch_nodes(self, dispatcher: Dispatcher) -> None:
        while True:
            await self._nodes.wait_for_change()
            dispatcher.wake()

    def _full_weights_requested(self) -> bool:
        return any(needs_full_weights(beat, self._settings.model) for beat in self._nodes.members())

    def _disk_problem(self) -> str:
        try:
            free = disk_space.free_bytes(self._settings.checkpoint_dir)
        except OSError as error:
            return f"the free space of the checkpoints' disk is unknown: {error.strerror}"
        return disk_space.record_free("checkpoints", free, self._settings.disk_free_mib)

    def _state(self, step: int) -> str:
        if self._is_leaving:
            return DONE if step >= self._settings.max_steps else "stopping"
        return self._loop.phase if self._loop is not None else "starting"

    def _describe(self) -> dict[str, Any]:
        """Collect the fields of the heartbeat."""
        loop, settings = self._loop, self._settings
        state = loop.state if loop is not None else self._initial_state
        status: dict[str, Any] = {"step": state.step, "steps": settings.max_steps}
        if problem := self._disk_problem():
            status["disk"] = problem
        if loop is not None:
            if loop.last_metrics and settings.groups_per_step:
                status["reward"] = loop.last_metrics["reward/mean"]
                status["staleness"] = loop.last_metrics["staleness/mean"]
            elif loop.last_metrics:
                status["loss"] = loop.last_metrics["actor/loss"]
            if alerts := loop.alerts.sentences:
                status |= {"alert": "; ".join(alerts.values()), "alerts": alerts}
            if blocker := find_blocker(loop, self._pin_watch.describe):
                status["waits for"] = blocker
            if loop.phase == "waiting" and not self._is_leaving:
                status["groups"] = f"{len(loop.consumer.groups.ready)}/{settings.groups_per_step}"
        return {
            "run_id": settings.run,
            "state": self._state(state.step),
            "model": settings.model,
            "version": state.version,
            "status": status,
        }


def find_blocker(loop: TrainingLoop, describe_pin: Callable[[int], str] = lambda version: "") -> str:
    """Say what the loop waits for, other than rollouts; empty if there is nothing.

    ``describe_pin`` returns the pin that keeps nodes below a version, in words.
    """
    if loop.teachers is not None and loop.teachers.problem and loop.is_waiting_for_scores:
        return f"a teacher: {loop.teachers.problem}"
    if loop.slow_groups.awaited:
        return f"{len(loop.slow_groups.awaited)} slow groups, which the next step would put beyond max_staleness"
    version = loop.missing_served_version
    if version is None:
        return ""
    return "; ".join(filter(None, (f"a node that serves version {version} or a newer one", describe_pin(version))))
