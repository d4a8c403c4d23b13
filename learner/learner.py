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
from bus.fleet.heartbeats import own_id
from bus.fleet.node_state import serves
from bus.task_file import read_problems
from common import disk_space
from common.aio import cancel
from common.observability import metrics, tracing
from learner.accounting import Account
from learner.batching.batch import STALE, BatchMaker
from learner.batching.rollout_uses import spans_of
from learner.batching.tokenizer import decoder, vocabulary
from learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from learner.checkpointing.resume import resumed
from learner.checkpointing.step_committer import Saver
from learner.errors import CannotLearn
from learner.publishing.broadcaster import Broadcaster
from learner.publishing.publisher import NONCE_BYTES, WeightPublisher, wants_whole
from learner.rollouts.capacity import shortage
from learner.rollouts.consumer import Intake
from learner.rollouts.dispatcher import Dispatcher
from learner.rollouts.groups import Group, in_dispatch_order
from learner.rollouts.loss_recovery import Mender
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

    Raises `CannotLearn`, `checkpoint.CheckpointError` or `bus.task_file.TaskFileError`.
    """
    if not (settings.model_path / "config.json").exists():
        raise CannotLearn(f"model_path: {settings.model_path} holds no model (no config.json)")
    with Checkpoints(settings.checkpoints).locked():
        await Learner(bus, settings).run(stop)


def follow(settings: LearnerSettings) -> None:
    """A rank beside the first, started by torchrun: does in the trainer what that one does, and nothing else."""
    from learner.training.trainer import Trainer

    for number in (signal.SIGTERM, signal.SIGINT):  # sent to all ranks; the first one finishes its step, then says so
        signal.signal(number, signal.SIG_IGN)
    Trainer(settings).follow()


class Learner:
    """One learner process; see the module."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._checkpoints = Checkpoints(settings.checkpoints, settings.keep_checkpoints)
        self._nodes = bus.fleet("inference")
        self._broadcaster = Broadcaster(settings, self._nodes.members)
        self._publisher = WeightPublisher(bus, settings, self._whole_wanted, self._broadcaster)
        self._thread = ThreadPoolExecutor(1, "trainer")  # one, because torch's thread count belongs to a thread
        self._intake: Intake
        self._account: Account
        self._phase = "starting"
        self._waits_for = ""
        self._event: TrainingStep | None = None
        self._metrics: dict[str, float] = {}
        self._state = LearnerState(run=settings.run, model=settings.model)

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        name = own_id(self._settings.id)
        async with self._nodes, self._bus.beat("learner", name, self._describe) as pulse, self._broadcaster:
            try:
                await self._begin()
                fenced = self._publisher.superseded(self._state.epoch)
                published = self._publisher.keep_published(self._intake.was_reset)
                work = [
                    self._intake.run(),
                    self._dispatcher.run(),
                    self._train(),
                    self._mender.run(),
                    fenced,
                    published,
                ]
                tasks = [asyncio.create_task(part) for part in work]
                stopping = asyncio.create_task(stop.wait())
                done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
                await cancel(*tasks, stopping)
                for task in done:
                    task.result()
                self._phase = "done"
                await pulse.now()
                await self._in_thread(self._trainer.done)
            finally:
                # A step that was running is thrown away: the checkpoint before it is what counts.
                await asyncio.to_thread(self._thread.shutdown)

    async def _begin(self) -> None:
        """Start anew or go on from the checkpoint, under an epoch of our own."""
        settings = self._settings
        problems = read_problems(settings.tasks) if settings.tasks is not None else []
        last, found = await self._publisher.look(), self._checkpoints.latest()
        self._state = state = resumed(found, last, settings)
        self._intake = Intake(self._bus, settings, state.position, state.used, state.closed, state.stream)
        await self._check_capacity()
        try:
            await self._in_thread(self._make, found[0] / TRAINER if found else None)
            self._saver = Saver(settings, self._trainer, self._publisher, self._checkpoints, self._in_thread)
        except ValueError as error:
            raise CannotLearn(str(error)) from error
        self._account = Account(self._intake, settings)
        await self._saver.share_base()
        self._dispatcher = Dispatcher(self._bus, problems, settings, state.groups_dispatched)
        await self._dispatcher.restore(state.outstanding)
        self._mender = Mender(self._bus, self._intake, self._dispatcher)
        if found is None:
            await self._intake.find_position()  # so that the first checkpoint, too, knows which stream it is of
        path = found[0] if found else await self._saver.first(self._covering(state))
        self._state = state = await self._saver.claim(path, found, state)
        metrics.learner_version.set(state.version)
        if state.event:
            self._event = decode(TrainingStep, state.event)
            await self._announce(self._event)
        if found is not None:
            log.info("goes on at step %d, version %d, epoch %d", state.step, state.version, state.epoch)
        self._dispatcher.admit(state.step, state.groups_dropped)

    async def _check_capacity(self) -> None:
        short = shortage(self._settings, await self._intake.room.capacity())
        if short.step:
            raise CannotLearn(short.step)
        if short.interval:
            log.warning("%s; until then checkpoints are written as the stream fills", short.interval)

    def _make(self, checkpoint: Path | None) -> None:
        from learner.training.trainer import (
            Trainer,
        )  # takes seconds to import: not before the settings are known to be right

        model = self._settings.model_path
        self._maker = BatchMaker(self._settings, decoder(model), vocabulary(model))
        self._trainer = Trainer(self._settings)
        if checkpoint is not None:
            self._trainer.load(checkpoint)

    async def _train(self) -> None:
        while self._state.step < self._settings.steps:
            waited = time.monotonic()
            self._phase = "waiting"
            with tracing.span("step", {attributes.RUN: self._settings.run}) as traced:
                with tracing.span("wait"):
                    groups = await self._next_groups()
                self._phase = "training"
                await self._step(groups, time.monotonic() - waited)
                traced.note({attributes.STEP: self._state.step, attributes.WEIGHT_VERSION: self._state.version})
        await self._account_for_the_rest()

    async def _next_groups(self) -> list[Group]:
        while True:
            left = self._intake.expire()
            self._drop(self._account.settle())
            groups = self._intake.groups.take(self._settings.groups_per_step, self._choose)
            metrics.groups_ready.set(len(self._intake.groups.ready))
            if groups:
                return groups
            await self._make_room()
            self._intake.news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._intake.news.wait()
            except TimeoutError:
                continue

    async def _make_room(self) -> None:
        """A checkpoint between two steps, where what came to nothing fills the bus."""
        if not self._intake.room.is_filling or self._intake.position() <= self._intake.committed:
            return
        state = self._covering(self._state)
        uses = self._account.take()
        if self._event is not None:
            state = replace(state, event=encode(self._event))
            await self._announce(replace(self._event, rollouts=tuple(uses), spans=()), f"-{state.position}")
        else:
            self._account.add(uses, [])  # the first step will say it
        await self._saver.checkpoint(state)
        self._state = state
        await self._intake.acknowledge(state.position)
        await self._fills()
        log.info("checkpoint between two steps: the bus was filling")

    def _choose(self, ready: Sequence[Group]) -> Sequence[Group]:
        if not self._dispatcher.order:
            return ready
        return in_dispatch_order(ready, self._dispatcher.order, self._intake.groups.closed)

    async def _account_for_the_rest(self) -> None:
        """What came after the last step was made is said to be unused, too."""
        self._account.close()
        uses = tuple(self._account.take())
        if uses and self._event is not None:
            await self._announce(replace(self._event, rollouts=uses, spans=()), "rest")

    def _drop(self, tasks: Sequence[str]) -> None:
        """The groups of these tasks came to nothing: as many more are dispatched."""
        if not tasks:
            return
        self._dispatcher.settle(tasks)
        self._state = replace(self._state, groups_dropped=self._state.groups_dropped + len(tasks))
        self._dispatcher.admit(self._state.step, self._state.groups_dropped)

    async def _caught_up(self) -> None:
        """Wait for a node that serves what is not too old to learn from."""
        oldest = self._state.version - self._settings.max_staleness
        self._waits_for = f"a node that serves version {oldest} or a newer one"
        while not any(self._serves(beat, oldest) for beat in self._nodes.members()):
            await self._nodes.changed()
        self._waits_for = ""

    def _serves(self, beat: Heartbeat, oldest: int) -> bool:
        return serves(beat.state) and beat.model == self._settings.model and (beat.version or 0) >= oldest

    async def _step(self, groups: list[Group], idle: float) -> None:
        started_ns = time.time_ns()
        rollouts = {rollout.id: rollout for group in groups for rollout in group.rollouts}
        try:
            with tracing.span("batch"):
                batch = await self._in_thread(self._maker.make, groups, self._state.version)
        except ValueError as error:  # what a credit function of the user's own gave
            raise CannotLearn(str(error)) from error
        if not batch.rows:
            log.warning(
                "%d groups gave nothing to train on: %s", len(groups), {use.exclusion_reason for use in batch.uses}
            )
            self._account.add(batch.uses, rollouts.values())
            if {use.exclusion_reason for use in batch.uses} == {STALE}:
                await self._caught_up()  # else as many more would come from the same old weights, without end
            self._drop([group.task for group in groups])
            return
        with tracing.span("train"):
            said = await self._in_thread(self._trainer.step, batch)
        step, version, nonce = self._state.step + 1, self._state.version + 1, secrets.token_hex(NONCE_BYTES)
        state = replace(self._state, step=step, version=version, nonce=nonce)
        event = TrainingStep(
            run_id=state.run,
            model=state.model,
            step=state.step,
            version=state.version,
            epoch=state.epoch,
            started_ns=started_ns,
            ended_ns=time.time_ns(),
            rollouts=(*batch.uses, *self._account.take()),
            metrics={**batch.metrics, **said, **self._mender.figures(), "seconds/idle": idle},
            batch_sha256=await self._in_thread(batch.digest),
            settings=self._settings.model_dump_json(),
            spans=(),
        )
        event = replace(event, spans=spans_of(event, rollouts))
        self._metrics = event.metrics
        self._intake.hand_out(rollouts.values())
        self._dispatcher.settle(group.task for group in groups)
        written = self._saver.is_written(state.step, await self._fills())
        if written:
            state = self._covering(replace(state, event=encode(event)))
        with tracing.span("publish"):
            await self._saver.save(state, written)
        self._state, self._event = state, event
        _moved(event)
        if written:
            await self._intake.acknowledge(state.position)
        await self._announce(event, unique=True)
        await self._mender.resolve()
        self._dispatcher.admit(state.step, state.groups_dropped)
        log.info("step %d/%d: reward %.3f", state.step, self._settings.steps, batch.metrics["reward/mean"])

    async def _fills(self) -> bool:
        with contextlib.suppress(BusError, NatsError):  # as it was a second ago, then
            await self._intake.room.look()
        return self._intake.room.is_filling

    def _covering(self, state: LearnerState) -> LearnerState:
        """The state with all that a learner needs to go on from here."""
        position = self._intake.position()
        return replace(
            state,
            position=position,
            stream=self._mender.mark,
            used=self._intake.used(position),
            closed=self._intake.groups.settled(),
            groups_dispatched=self._dispatcher.dispatched,
            outstanding=self._dispatcher.outstanding,
        )

    async def _announce(self, event: TrainingStep, part: str = "", unique: bool = False) -> None:
        msg_id = ids.step_msg_id(event.run_id, event.epoch, event.step, self._state.nonce) + part
        await self._bus.publish(subjects.TRAINING_STEP, event, msg_id=msg_id, timeout=math.inf, unique=unique)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _whole_wanted(self) -> bool:
        return any(wants_whole(beat, self._settings.model) for beat in self._nodes.members())

    def _disk_problem(self) -> str:
        try:
            free = disk_space.free_bytes(self._settings.checkpoints)
        except OSError as error:
            return f"the disk of the checkpoints cannot be looked at: {error.strerror}"
        return disk_space.note_free("checkpoints", free, self._settings.disk_free_mib)

    def _describe(self) -> dict[str, Any]:
        detail: dict[str, Any] = {"step": self._state.step, "steps": self._settings.steps}
        if self._metrics:
            detail["reward"] = self._metrics["reward/mean"]
            detail["staleness"] = self._metrics["staleness/mean"]
        if short := self._disk_problem():
            detail["disk"] = short
        if self._waits_for:
            detail["waits for"] = self._waits_for
        if self._phase == "waiting":
            detail["groups"] = f"{len(self._intake.groups.ready)}/{self._settings.groups_per_step}"
        return {
            "run_id": self._settings.run,
            "state": self._phase,
            "model": self._settings.model,
            "version": self._state.version,
            "status": detail,
        }


def _moved(event: TrainingStep) -> None:
    """What a step did, as metrics."""
    metrics.steps.inc()
    metrics.step_seconds.observe((event.ended_ns - event.started_ns) / 1e9)
    metrics.learner_wait_seconds.inc(event.metrics["seconds/idle"])
    metrics.learner_version.set(event.version)
    metrics.reward_mean.set(event.metrics["reward/mean"])
    metrics.staleness.set(event.metrics["staleness/mean"])
    metrics.tokens_trained.inc(event.metrics["tokens"])
    for use in event.rollouts:
        metrics.rollouts_used.labels("trained" if use.trained else "left out").inc()
