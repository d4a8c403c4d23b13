"""Results of a step: a weight version on the bus and a checkpoint on disk, in the order that keeps both valid."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lightningbus.bus.errors import FencedError
from lightningbus.learner.checkpointing.checkpoint import TRAINER, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.journal import EpochClaim, Journal
from lightningbus.learner.checkpointing.resume import resume
from lightningbus.learner.publishing.canary_prompts import CanaryPrompts, build_engine_check
from lightningbus.learner.publishing.publisher import WeightPublisher, fenced_error
from lightningbus.learner.publishing.weight_files import BASE, WEIGHTS, write_full, write_weights
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import ModelProbe, Trainer
from lightningbus.schemas.weights.events import CanarySpec

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
    ) -> None:
        """Read the canary's prompts; raise ValueError for unusable ones.

        ``probe``: what the engines have to agree with the trainer on.
        """
        self._settings, self._trainer, self._probe = settings, trainer, probe
        self._last_checked_version = 1 if settings.lora.lora_rank else 0  # new adapters are 0, and change nothing
        canary = settings.weights.canary
        self._canary_prompts = (
            CanaryPrompts(canary, settings.model_path, settings.seq_len) if canary is not None else None
        )
        self._publisher, self._checkpoints, self._in_thread = publisher, checkpoints, in_thread

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
        """Write the checkpoint that a run begins with."""
        return await self._commit(await self._in_thread(self._write, state), state)

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
        """Return whether a step needs a checkpoint: the last one does, and each while the bus fills."""
        settings = self._settings
        interval = settings.checkpoint_interval or settings.weight_sync_interval
        return is_filling or step == settings.max_steps or step % interval == 0

    async def commit(self, state: LearnerState, is_written: bool) -> None:
        """Publish the weights of a step as a version when it is due, and write its checkpoint if ``is_written``.

        The version first, because only the newest learner gets beyond publishing: an older one that is still alive must
        not replace a checkpoint nor acknowledge rollouts that the newer one has yet to read. Raises `LearnerError`
        then. A repeated step is not published again.
        """
        await self._in_thread(self.journal.sync)
        if is_written:
            await self.write_checkpoint(state)
        elif state.step % self._settings.weight_sync_interval == 0 and state.version > self.published_version:
            path = self._settings.checkpoint_dir
            await self._in_thread(write_weights, self._trainer, path / WEIGHTS)
            await self._publish_or_stop(path, state)

    async def write_checkpoint(self, state: LearnerState) -> None:
        """Write a checkpoint of the present weights, and publish their version unless it is out already."""
        path = await self._in_thread(self._write, state)
        if state.version > self.published_version:
            await self._publish_or_stop(path, state)
        await self._commit(path, state)

    async def _commit(self, path: Path, state: LearnerState) -> Path:
        final = Path(await self._in_thread(self._checkpoints.commit, path, state))
        self.journal.trim(state.journal_mark)
        return final

    async def _publish_or_stop(self, path: Path, state: LearnerState) -> None:
        try:
            await self._publish(path, state)
        except FencedError as error:
            raise fenced_error(state.model, state.epoch) from error

    async def _publish(self, path: Path, state: LearnerState) -> None:
        canary: CanarySpec | None = None
        if self._canary_prompts is not None:
            canary = await self._in_thread(self._canary_prompts.build_spec, self._trainer)
        elif self._probe is not None and state.version <= self._last_checked_version:
            canary = await self._in_thread(build_engine_check, self._trainer, self._probe)
        await self._publisher.publish(
            path / WEIGHTS, version=state.version, epoch=state.epoch, step=state.step, canary=canary
        )

    def _write(self, state: LearnerState) -> Path:
        path = self._checkpoints.create_temp(state.step)
        self._trainer.save(path / TRAINER)
        write_weights(self._trainer, path / WEIGHTS)
        return path
