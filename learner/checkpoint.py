"""Checkpoints: everything a learner needs to go on as if it had never stopped, written whole or not at all."""

import shutil
from pathlib import Path

import msgspec

STATE = "state.json"
TRAINER = "trainer"
WEIGHTS = "weights.safetensors"
LATEST = "latest"
KEPT = 2


class CheckpointError(Exception):
    """A checkpoint cannot be read; the message says which and why."""


class LearnerState(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in the model or the optimiser."""

    run: str
    model: str
    step: int = 0
    version: int = 0
    epoch: int = 1
    position: int = 1
    """Stream sequence to replay from: everything before it is used or of no use."""
    used: list[str] = []
    """Rollouts that have had their last word and are not to be used again."""
    closed: list[str] = []
    """Tasks whose group was closed before every sample had ended."""
    groups_dispatched: int = 0
    groups_dropped: int = 0
    event: bytes = b""
    """The step's TrainingStep, encoded: published again after a crash, in case it had not been."""


class Checkpoints:
    """A directory of checkpoints; ``latest`` points to the newest whole one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, step: int) -> Path:
        """A fresh temporary directory to write into; hand it to `commit`."""
        path = self._directory / f".writing-{step:06d}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, path: Path, state: LearnerState) -> Path:
        """Write the state, make the directory the latest, remove old ones; returns where it lies now."""
        (path / STATE).write_bytes(msgspec.json.encode(state))
        final = self._directory / f"step-{state.step:06d}-{state.epoch}"
        shutil.rmtree(final, ignore_errors=True)
        path.rename(final)
        pointer = self._directory / f".{LATEST}"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(final.name)
        pointer.replace(self._directory / LATEST)
        for old in sorted(self._directory.glob("step-*"))[:-KEPT]:
            if old != final:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def latest(self) -> tuple[Path, LearnerState] | None:
        """The newest checkpoint, None if there is none; raises `CheckpointError` if it cannot be read."""
        path = self._directory / LATEST
        if not path.exists():
            return None
        path = path.resolve()
        try:
            return path, msgspec.json.decode((path / STATE).read_bytes(), type=LearnerState)
        except (OSError, msgspec.MsgspecError) as error:
            raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
