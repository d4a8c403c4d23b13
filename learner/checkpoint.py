"""Checkpoints: everything a learner needs to go on as if it had never stopped, written whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import msgspec

from learner.continuity import StreamMark

STATE = "state.json"
TRAINER = "trainer"
LATEST = "latest"
LOCK = ".lock"


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
    """Where to replay from, as `StreamMark` counts: everything before it is used or of no use."""
    stream: StreamMark = StreamMark()
    used: dict[str, int] = {}
    """Executions that a replay from there meets again and must pass over, with the position of their last batch."""
    closed: list[str] = []
    """Tasks whose group is closed."""
    groups_dispatched: int = 0
    outstanding: list[int] = []
    """Places of the groups that are dispatched and neither trained on nor dropped."""
    groups_dropped: int = 0
    event: bytes = b""
    """The step's TrainingStep, encoded: published again after a crash, in case it had not been."""


class Checkpoints:
    """A directory of checkpoints; ``latest`` points to the newest whole one."""

    def __init__(self, directory: Path, kept: int = 2) -> None:
        self._directory, self._kept = directory, kept

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The directory is ours while the block runs; raises `CheckpointError` if another process has it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointError(
                    f"checkpoints: another learner is using {self._directory}; stop it, or give this one its own"
                ) from None
            yield

    def begin(self, step: int) -> Path:
        """A fresh temporary directory to write into; hand it to `commit`."""
        path = self._directory / f".writing-{step:06d}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, path: Path, state: LearnerState) -> Path:
        """Write the state, make the directory the latest, remove old ones; returns where it lies now."""
        (path / STATE).write_bytes(msgspec.json.encode(state))
        _to_disk(path)
        final = self._free_name(f"step-{state.step:06d}-{state.epoch}")
        path.rename(final)
        pointer = self._directory / f".{LATEST}"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(final.name)
        pointer.replace(self._directory / LATEST)
        _sync(self._directory)
        for old in sorted(self._directory.glob("step-*"))[: -self._kept]:
            if old != final:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def _free_name(self, name: str) -> Path:
        """Never that of a checkpoint that is there: ``latest`` may point to it."""
        taken = {path.name for path in self._directory.glob(f"{name}*")}
        names = chain([name], (f"{name}-{number:06d}" for number in count(1)))
        return self._directory / next(one for one in names if one not in taken)

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


def _to_disk(directory: Path) -> None:
    """A checkpoint must be whole on disk before anything points to it, or a power loss leaves one that is not."""
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
