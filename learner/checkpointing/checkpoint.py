"""Checkpoints: the complete state from which a learner resumes, written atomically."""

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from lightningbus.learner.checkpointing.journal import Journal
from lightningbus.learner.checkpointing.seal import InvalidSealError, check_seal, load_key, write_seal
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.rollouts.stream_position import StreamMark
from lightningbus.learner.selection.difficulty import TaskResults

log = logging.getLogger(__name__)

STATE = "state.json"
TRAINER = "trainer"
LATEST = "latest"
LOCK = ".lock"
WRITING = ".writing-"
"""Before the name of one that is being written."""
BROKEN = "broken-"
"""Before the name of a checkpoint that cannot be used."""
BEGIN_ANEW = "begin anew with other checkpoints and another model name"
_UNUSABLE = (OSError, InvalidSealError, msgspec.MsgspecError)


class CheckpointError(Exception):
    """No checkpoint can be read, or its directory is another learner's; the message gives the reason."""


class LearnerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the learner outside model and optimiser."""

    run_id: str
    model: str
    step: int = 0
    version: int = 0
    epoch: int = 1
    oldest_version: int = 0
    """The first version after others that another learner made or that were lost: these weights follow from none."""
    stream_position: int = 1
    """Position from which to replay, as `StreamMark` counts: everything before it is used or useless."""
    stream_mark: StreamMark = StreamMark()
    consumed_executions: dict[str, int] = {}
    """Executions that a replay from there meets again and must pass over, with the position of their last batch."""
    closed_groups: list[str] = []
    """Tasks whose group is closed."""
    groups_dispatched: int = 0
    """Groups of the run, replacements not counted."""
    groups_by_others: int = 0
    """Groups among them that learners of other models dispatched."""
    outstanding: list[DispatchedGroup] = []
    """The groups that are dispatched and neither trained nor dropped, in the order of dispatch."""
    task_results: dict[str, TaskResults] = {}
    """Results of tasks that a sampler asks for, by their ids in the file: of all groups that a replay does not meet."""
    last_step_event: bytes = b""
    """The step's TrainingStep, encoded: published again after a crash, in case it had not been."""
    nonce: str = ""
    """Nonce of the message id under which it is published, both times."""
    journal_mark: str = ""
    """The id of the journal's mark for this checkpoint."""
    step_fields: dict[str, Any] = {}
    """`LearnerSettings.step_fields` by which the steps after this checkpoint are made; empty: unknown."""


class Checkpoints:
    """A directory of checkpoints; ``latest`` points to the newest whole one."""

    def __init__(self, directory: Path, kept: int = 2) -> None:
        self._directory, self._kept = directory, kept
        self.journal = Journal(directory)
        """The record of what the learner did since the newest checkpoint."""
        self._key = directory.with_name(f"{directory.name}.key")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory while the block runs, without what was left half written.

        Raises `CheckpointError` if another process has it.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointError(
                    f"checkpoints: another learner is using {self._directory}; stop it, or give this one its own"
                ) from None
            for left in self._directory.glob(f"{WRITING}*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    def create_temp(self, step: int) -> Path:
        """Make a fresh temporary directory to write into; hand it to `commit`."""
        path = self._directory / f"{WRITING}{step:06d}-{secrets.token_hex(4)}"
        path.mkdir(parents=True)
        return path

    def commit(self, path: Path, state: LearnerState) -> Path:
        """Finish a checkpoint and make it the latest; return its final path."""
        self.finish(path, state)
        return self.replace_latest(path, state)

    def finish(self, path: Path, state: LearnerState) -> None:
        """Write the state beside what is written, seal all of it, and return when it is on disk."""
        (path / STATE).write_bytes(msgspec.json.encode(state))
        write_seal(path, self._secret())
        _fsync_tree(path)

    def replace_latest(self, path: Path, state: LearnerState) -> Path:
        """Make a finished checkpoint the latest, and remove old ones; return its final path."""
        final = self._free_name(f"step-{state.step:06d}-{state.epoch}")
        path.rename(final)
        pointer = self._directory / f".{LATEST}"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(final.name)
        pointer.replace(self._directory / LATEST)
        _sync(self._directory)
        for old in self._by_age()[: -self._kept]:
            if old != final.resolve():
                shutil.rmtree(old, ignore_errors=True)
        return final

    def _free_name(self, name: str) -> Path:
        """Return a name that no present checkpoint has, because ``latest`` may point to it."""
        taken = {path.name for path in self._directory.glob(f"{name}*")}
        names = chain([name], (f"{name}-{number:06d}" for number in count(1)))
        return self._directory / next(name for name in names if name not in taken)

    def latest(self) -> tuple[Path, LearnerState] | None:
        """Find the newest complete checkpoint, None if there is none at all.

        A changed one gives way to the one before it, and is kept under another name. Raises `CheckpointError` when none
        can be used.
        """
        pointer, candidates = self._directory / LATEST, self._by_age()[::-1]
        if not candidates:
            return None
        if (newest := pointer.resolve()) in candidates:
            candidates = [newest, *(path for path in candidates if path != newest)]
        else:
            log.warning("%s is missing or leads nowhere; goes on from the newest checkpoint beside it", pointer)
        key, broken = self._secret(), dict[Path, str]()
        for path in candidates:
            try:
                state = _read(path, key)
            except _UNUSABLE as error:
                broken[path] = str(error)
                continue
            for other, reason in broken.items():
                log.error("checkpoint %s cannot be used: %s; goes on from %s", other, reason, path.name)
                other.rename(other.with_name(f"{BROKEN}{other.name}"))
            return path, state
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in broken.items())
        raise CheckpointError(
            f"checkpoints: none in {self._directory} can be used ({reasons}): bring back a copy with {self._key}, "
            f"or {BEGIN_ANEW}"
        )

    def of_step(self, step: int) -> Path | None:
        """Find the newest checkpoint of a step, None if there is none; raise `CheckpointError` if it cannot be used."""
        paths = [path for path in self._by_age() if path.name.startswith(f"step-{step:06d}-")]
        if not paths:
            return None
        try:
            _read(paths[-1], self._secret())
        except _UNUSABLE as error:
            raise CheckpointError(f"checkpoint {paths[-1]} cannot be used: {error}") from error
        return paths[-1]

    def _secret(self) -> bytes:
        """Read the key, which is made where no checkpoint is sealed yet; raise `CheckpointError`."""
        if not self._key.exists() and self._by_age():
            raise CheckpointError(
                f"checkpoints: {self._key} is missing, the key by which those in {self._directory} are sealed: put it "
                f"back from a backup, or {BEGIN_ANEW}"
            )
        try:
            return load_key(self._key)
        except (InvalidSealError, OSError) as error:
            raise CheckpointError(f"checkpoints: their key {self._key} cannot be used: {error}") from error

    def _by_age(self) -> list[Path]:
        """List all checkpoints, oldest first."""
        paths = self._directory.resolve().glob("step-*")
        return sorted(paths, key=lambda path: [int(part) for part in path.name.split("-")[1:] if part.isdecimal()])


def find_last_step(directory: Path) -> int | None:
    """Return the training step of the newest checkpoint in a directory by the names alone; None without any."""
    names = [path.name.split("-") for path in directory.glob("step-*-*")]
    return max((int(step) for _, step, *_ in names if step.isdecimal()), default=None)


def _read(path: Path, key: bytes) -> LearnerState:
    check_seal(path, key)
    return msgspec.json.decode((path / STATE).read_bytes(), type=LearnerState)


def _fsync_tree(directory: Path) -> None:
    """Flush a checkpoint to disk before anything points to it: a power loss would leave an incomplete one."""
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
