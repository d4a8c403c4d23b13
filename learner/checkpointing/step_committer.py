"""Results of a step: a weight version on the bus and a checkpoint on disk, in the order that keeps both valid."""

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lightningbus.bus.errors import FencedError
from lightningbus.learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.checkpoint_schedule import CheckpointSchedule
from lightningbus.learner.checkpointing.checkpoint_writer import CheckpointWriter, OnWritten, Write
from lightningbus.learner.checkpointing.journal import EpochClaim, Journal
from lightningbus.learner.checkpointing.resume import resume
from lightningbus.learner.publishing.canary_prompts import CanaryPrompts, build_engine_check, build_first_engine_check
from lightningbus.learner.publishing.engine_checks import EngineChecks
from lightningbus.learner.publishing.publisher import WeightPublisher, fenced_error
from lightningbus.learner.publishing.weight_files import BASE, WEIGHTS, write_full, write_weights
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import ModelProbe, Trainer
from lightningbus.schemas.weights.events import CanarySpec

log = logging.getLogger(__name__)

InThread = Callable[..., Awaitable[Any]]
"""Runs a blocking call in the trainer's thread."""


class StepCommitter:
    """Writes versions and checkpoints of a trainer."""

    def __init__(
        self,
        settings: LearnerSettings,
        trainer: Trainer,
        publisher: WeightPublisher,
        checkpoints: Checkpoints,
        in_thread: InThread,
        probe: ModelProbe | None = None,
        engine_checks: EngineChecks | None = None,
    ) -> None:
        """Read the canary's prompts; raise ValueError for unusable ones.

        ``probe``: what the engines have to agree with the trainer on, in the versions of ``engine_checks``.
        """
        self._settings, self._trainer, self._probe = settings, trainer, probe
        self._engine_checks = engine_checks or EngineChecks()
        canary = settings.weights.canary
        self._canary_prompts = (
            CanaryPrompts(canary, settings.model_path, settings.seq_len) if canary is not None else None
        )
        self._publisher, self._checkpoints, self._in_thread = publisher, checkpoints, in_thread
        self.writer = CheckpointWriter(checkpoints, publisher.check_newest)
        """The checkpoint on its way to disk."""
        self.schedule = CheckpointSchedule(
            settings.weight_sync_interval,
            settings.checkpoint_interval,
            settings.checkpoint_max_overhead,
            settings.checkpoint_max_repeat_seconds,
        )

    @property
    def journal(self) -> Journal:
        """The journal of the checkpoints."""
        return self._checkpoints.journal

    @property
    def published_version(self) -> int:
        """Newest version on the bus; -1: none."""
        return self._publisher.last.version if self._publisher.last is not None else -1

    async def publish_base(self) -> None:
        """Publish the base of LoRA adapters once; without LoRA do nothing."""
        if self._settings.lora.lora_rank:
            base = self._settings.checkpoint_dir / BASE
            await self._in_thread(write_full, self._trainer, base)
            await self._publisher.publish_base(base)

    async def write_initial_checkpoint(self, state: LearnerState) -> Path:
        """Write the checkpoint that a run begins with, and wait for it."""
        path: Path = await self._in_thread(self._write, state)
        final: Path = await self._in_thread(self._checkpoints.commit, path, state)
        self.journal.trim(state.journal_mark)
        return final

    async def claim_epoch(
        self, path: Path, checkpoint: tuple[Path, LearnerState] | None, state: LearnerState
    ) -> LearnerState:
        """Publish the first version of this epoch, which fences an older learner; return its manifest.

        That version is the newest one on the bus where the steps to it are repeated, else that of the checkpoint.
        """
        while True:
            self.journal.append(EpochClaim(state.epoch))
            try:
                if self.published_version > state.version:
                    await self._publisher.claim(state.epoch)
                else:
                    await self._publish(path, state)
            except FencedError as error:
                if checkpoint is None:
                    raise fenced_error(state.model, state.epoch) from error
                records = self.journal.since(checkpoint[1].journal_mark)
                state = resume(checkpoint, await self._publisher.refresh(), self._settings, records).state
            else:
                return state

    def is_checkpoint_due(self, step: int, is_filling: bool) -> bool:
        """Return whether a step needs a checkpoint: the last one does, each while the bus fills, and by schedule."""
        is_last = step == self._settings.max_steps
        return is_filling or is_last or self.schedule.is_due(step, self.writer.is_writing)

    async def commit(self, state: LearnerState, on_written: OnWritten | None) -> None:
        """Publish the weights of a step as a version when it is due.

        With ``on_written``, begin to write its checkpoint too. The version goes first, because only the newest learner
        gets beyond publishing: an older one that is still alive must not replace a checkpoint nor acknowledge rollouts
        that the newer one has yet to read. Raises `LearnerError` then. A repeated step is not published again.
        """
        await self._in_thread(self.journal.sync)
        if on_written is not None:
            await self.begin_checkpoint(state, on_written)
        elif state.step % self._settings.weight_sync_interval == 0 and state.version > self.published_version:
            path = self._settings.checkpoint_dir
            await self._in_thread(write_weights, self._trainer, path / WEIGHTS)
            await self._publish_or_stop(path, state)

    async def begin_checkpoint(self, state: LearnerState, on_written: OnWritten) -> None:
        """Begin to write a checkpoint of the present weights, and publish their version unless it is out already.

        Wait first for the checkpoint before it. The weights may change once this returns.
        """
        began = time.monotonic()
        await self.writer.wait()
        path, write = await self._in_thread(self._copy, state)
        waited = time.monotonic() - began
        self.schedule.begin_checkpoint(waited)
        await self._in_thread(write_weights, self._trainer, path / WEIGHTS)
        if state.version > self.published_version:
            await self._publish_or_stop(path, state)

        async def note_cost(position: int) -> None:
            cpu_seconds = self.writer.last_cpu_seconds
            self.schedule.end_checkpoint(cpu_seconds)
            log.info("checkpoint of step %d: training waited %.1f s, %.1f s of CPU", state.step, waited, cpu_seconds)
            await on_written(position)

        self.writer.begin(path, state, write, note_cost)

    async def write_checkpoint(self, state: LearnerState) -> None:
        """Write a checkpoint as `begin_checkpoint` does, and wait for it."""

        async def do_nothing(position: int) -> None: ...

        await self.begin_checkpoint(state, do_nothing)
        await self.writer.wait()

    async def _publish_or_stop(self, path: Path, state: LearnerState) -> None:
        try:
            await self._publish(path, state)
        except FencedError as error:
            raise fenced_error(state.model, state.epoch) from error

    async def _publish(self, path: Path, state: LearnerState) -> None:
        canary: CanarySpec | None = None
        if self._canary_prompts is not None:
            canary = await self._in_thread(self._canary_prompts.build_spec, self._trainer)
        elif self._probe is not None and self._engine_checks.is_due(state.version):
            build = build_engine_check if state.version else build_first_engine_check
            canary = await self._in_thread(build, self._trainer, self._probe)
            self._engine_checks.add(state.version)
        await self._publisher.publish(
            path / WEIGHTS, version=state.version, epoch=state.epoch, step=state.step, canary=canary
        )

    def _write(self, state: LearnerState) -> Path:
        path = self._checkpoints.create_temp(state.step)
        self._trainer.save(path / TRAINER)
        write_weights(self._trainer, path / WEIGHTS)
        return path

    def _copy(self, state: LearnerState) -> tuple[Path, Write]:
        path = self._checkpoints.create_temp(state.step)
        return path, self._trainer.begin_save(path / TRAINER)
