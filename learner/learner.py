"""The learner: consumes rollouts, dispatches tasks, trains, checkpoints, publishes versions."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from bus import LEARNER_SPANS, Bus
from bus.tasks import read_problems
from learner.batch import make_batch, spans_of, unused
from learner.checkpoint import TRAINER, WEIGHTS, Checkpoints, LearnerState
from learner.dispatch import Dispatcher
from learner.groups import Group
from learner.intake import Intake
from learner.publish import CannotLearn, WeightPublisher
from learner.settings import LearnerSettings
from schemas import identity, subjects
from schemas.codec import decode, encode
from schemas.events import RolloutUse, TrainingStep

log = logging.getLogger(__name__)
T = TypeVar("T")


async def run(bus: Bus, settings: LearnerSettings, stop: asyncio.Event) -> None:
    """Train until the last step or until asked to stop.

    Raises `CannotLearn`, `checkpoint.CheckpointError` or `bus.tasks.TaskFileError`.
    """
    if not (settings.model_path / "config.json").exists():
        raise CannotLearn(f"model_path: {settings.model_path} holds no model (no config.json)")
    await Learner(bus, settings).run(stop)


class Learner:
    """One learner process; see the module."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._checkpoints = Checkpoints(settings.checkpoints)
        self._publisher = WeightPublisher(bus, settings)
        self._thread = ThreadPoolExecutor(1, "trainer")  # one, because torch's thread count belongs to a thread
        self._intake: Intake
        self._accounted: list[RolloutUse] = []  # of rollouts that came to nothing since the last step
        self._phase = "starting"
        self._metrics: dict[str, float] = {}
        self._state = LearnerState(run=settings.run, model=settings.model)

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        name = f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
        async with self._bus.beat("learner", name, self._describe) as pulse:
            try:
                await self._begin()
                work = [self._intake.run(), self._dispatcher.run(), self._train()]
                tasks = [asyncio.create_task(part) for part in work]
                stopping = asyncio.create_task(stop.wait())
                done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
                for task in (*tasks, stopping):
                    task.cancel()
                await asyncio.gather(*tasks, stopping, return_exceptions=True)
                for task in done:
                    task.result()
                self._phase = "done"
                await pulse.now()
            finally:
                # A step that was running is thrown away: the checkpoint before it is what counts.
                await asyncio.to_thread(self._thread.shutdown)

    async def _begin(self) -> None:
        """Start anew or go on from the checkpoint, under an epoch of our own."""
        settings = self._settings
        problems = read_problems(settings.tasks) if settings.tasks is not None else []
        last, found = await self._publisher.look(), self._checkpoints.latest()
        if found is None and last is not None:
            raise CannotLearn(
                f"model {settings.model!r} has version {last.version} on this bus, but {settings.checkpoints} holds no "
                "checkpoint to go on from: give the right checkpoints, or another model name"
            )
        if found is not None:
            self._state = found[1]
            if (self._state.run, self._state.model) != (settings.run, settings.model):
                raise CannotLearn(
                    f"checkpoints: {found[0]} is of run {self._state.run!r}, model {self._state.model!r}, "
                    f"not of run {settings.run!r}, model {settings.model!r}"
                )
        self._trainer = await self._in_thread(self._make_trainer, found[0] / TRAINER if found else None)
        state = self._state
        epoch = max(state.epoch, last.epoch if last else 0) + (found is not None or last is not None)
        # Steps made after the checkpoint are undone: their numbers are not given again to other weights.
        version = state.version if last is None or last.version <= state.version else last.version + 1
        self._state = replace(state, epoch=epoch, version=version)
        self._intake = Intake(self._bus, settings, state.used, state.closed)
        self._dispatcher = Dispatcher(self._bus, problems, settings, state.groups_dispatched)
        path = found[0] if found else await self._checkpoint(self._state)
        await self._publisher.publish(path / WEIGHTS, version=version, epoch=epoch, step=state.step)
        if state.event:
            await self._announce(decode(TrainingStep, state.event))
        if found is not None and last is not None:
            await self._bus.reset(LEARNER_SPANS, state.position)
            self._intake.next_sequence = state.position
            log.info("goes on at step %d, version %d, epoch %d", state.step, version, epoch)
        if problems:
            self._dispatcher.admit(state.step, state.groups_dropped)

    def _make_trainer(self, checkpoint: Path | None) -> Any:
        from learner.trainer import Trainer  # takes seconds to import: not before the settings are known to be right

        trainer = Trainer(self._settings)
        if checkpoint is not None:
            trainer.load(checkpoint)
        return trainer

    async def _train(self) -> None:
        while self._state.step < self._settings.steps:
            waited = time.monotonic()
            self._phase = "waiting"
            groups = await self._next_groups()
            self._phase = "training"
            await self._step(groups, time.monotonic() - waited)

    async def _next_groups(self) -> list[Group]:
        while True:
            left = self._intake.groups.expire(time.monotonic())
            self._account_for_unused()
            groups = self._intake.groups.take(self._settings.groups_per_step)
            if groups:
                return groups
            self._intake.news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._intake.news.wait()
            except TimeoutError:
                continue

    def _account_for_unused(self) -> None:
        ended = self._intake.groups
        for group in ended.unusable:
            self._accounted += unused(group.rollouts, "group of fewer than two", self._settings)
            self._drop(1)
        self._accounted += unused(ended.late, "late", self._settings)
        ended.unusable, ended.late = [], []

    def _drop(self, groups: int) -> None:
        self._state = replace(self._state, groups_dropped=self._state.groups_dropped + groups)
        if self._settings.tasks is not None:
            self._dispatcher.admit(self._state.step, self._state.groups_dropped)

    async def _step(self, groups: list[Group], idle: float) -> None:
        started_ns = time.time_ns()
        rollouts = {rollout.id: rollout for group in groups for rollout in group.rollouts}
        batch = make_batch(groups, self._state.version, self._settings)
        if not batch.rows:
            log.warning("%d groups gave nothing to train on: %s", len(groups), {use.reason for use in batch.uses})
            self._accounted += batch.uses
            self._drop(len(groups))
            return
        metrics = await self._in_thread(self._trainer.step, batch.rows, batch.advantages)
        state = replace(self._state, step=self._state.step + 1, version=self._state.version + 1)
        event = TrainingStep(
            run=state.run,
            model=state.model,
            step=state.step,
            version=state.version,
            epoch=state.epoch,
            started_ns=started_ns,
            ended_ns=time.time_ns(),
            uses=(*batch.uses, *self._accounted),
            metrics={**batch.metrics, **metrics, "seconds/idle": idle},
            spans=(),
        )
        event = replace(event, spans=spans_of(event, rollouts))
        self._accounted, self._metrics = [], event.metrics
        path = None
        if state.step % self._settings.checkpoint_every == 0 or state.step == self._settings.steps:
            state = replace(state, event=encode(event))
            path = await self._checkpoint(state)
        self._state = state
        weights = path / WEIGHTS if path else await self._in_thread(self._write_weights, self._settings.checkpoints)
        await self._publisher.publish(weights, version=state.version, epoch=state.epoch, step=state.step)
        await self._announce(event)
        if self._settings.tasks is not None:
            self._dispatcher.admit(state.step, state.groups_dropped)
        log.info("step %d/%d: reward %.3f", state.step, self._settings.steps, batch.metrics["reward/mean"])

    async def _checkpoint(self, state: LearnerState) -> Path:
        """Write it, then acknowledge what need not be replayed any more."""
        state = replace(
            state,
            position=self._intake.position(),
            used=self._intake.used(),
            closed=sorted(self._intake.groups.closed),
            groups_dispatched=self._dispatcher.dispatched,
        )
        path = await self._in_thread(self._write_checkpoint, state)
        await self._intake.acknowledge(state.position)
        return path

    def _write_checkpoint(self, state: LearnerState) -> Path:
        path = self._checkpoints.begin(state.step)
        self._trainer.save(path / TRAINER)
        self._write_weights(path)
        return self._checkpoints.commit(path, state)

    def _write_weights(self, directory: Path) -> Path:
        from safetensors.torch import save_file

        save_file(self._trainer.weights(), directory / WEIGHTS)
        return directory / WEIGHTS

    async def _announce(self, event: TrainingStep) -> None:
        msg_id = identity.step_msg_id(event.run, event.epoch, event.step)
        await self._bus.publish(subjects.STEP_SPANS, event, msg_id=msg_id)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _describe(self) -> dict[str, Any]:
        detail: dict[str, Any] = {"step": self._state.step, "steps": self._settings.steps}
        if self._metrics:
            detail["reward"] = self._metrics["reward/mean"]
            detail["staleness"] = self._metrics["staleness/mean"]
        if self._phase == "waiting":
            detail["groups"] = f"{len(self._intake.groups.ready)}/{self._settings.groups_per_step}"
        return {
            "run": self._settings.run,
            "state": self._phase,
            "model": self._settings.model,
            "version": self._state.version,
            "detail": detail,
        }
