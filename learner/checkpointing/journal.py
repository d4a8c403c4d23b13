"""Journal on disk of the learner's work since its checkpoint: dispatched groups and the batch of each step, in order.

A step's batch is written before its version is published. So a learner that resumes from an older checkpoint repeats
the steps after it with the same rollouts, and arrives at the weights that were published last.
"""

import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from lightningbus.learner.dispatch.pacing import DispatchedGroup

log = logging.getLogger(__name__)

FILE = "journal.jsonl"
MARK_BYTES = 8


class CheckpointMark(msgspec.Struct, frozen=True, tag="mark"):
    """A checkpoint is taken here: it covers all that comes before."""

    id: str


class EpochClaim(msgspec.Struct, frozen=True, tag="epoch"):
    """Epoch of all versions published from here on."""

    epoch: int


class GroupRecord(msgspec.Struct, frozen=True, tag="group"):
    """A group is dispatched, or will be; the last record of a group counts."""

    group: DispatchedGroup
    groups_by_others: int = 0
    """Groups that other learners of the run had dispatched then."""


class TrainedGroup(msgspec.Struct, frozen=True):
    """A group of a training step."""

    task_id: str
    execution_ids: list[str]
    group: DispatchedGroup | None = None
    """The dispatched group; None: another process published the task."""


class StepRecord(msgspec.Struct, frozen=True, tag="step"):
    """A training step: the version it makes, and its groups in the order of the batch."""

    version: int
    groups: list[TrainedGroup]


JournalRecord = CheckpointMark | EpochClaim | GroupRecord | StepRecord


class Journal:
    """A file of records, one a line. The directory belongs to one process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._records: list[JournalRecord] = []

    def load(self) -> None:
        """Read the existing records; drop one that a crash cut off, and all after it."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        self._records = []
        for line in lines:
            try:
                record = msgspec.json.decode(line, type=JournalRecord)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                record = None
            if record is None or not line.endswith(b"\n"):
                log.warning("%s ends with a record that cannot be read: it is removed", self._path)
                self._rewrite()
                return
            self._records.append(record)

    def append(self, record: JournalRecord) -> None:
        """Write a record, which survives the end of this process; `sync` makes it survive a power loss."""
        self._records.append(record)
        with self._path.open("ab", buffering=0) as file:
            file.write(_encode(record))

    def record_group(self, group: DispatchedGroup, groups_by_others: int) -> None:
        """Write a group as it is now.

        A selected task is on disk before it is published, because the choice is recorded nowhere else.
        """
        self.append(GroupRecord(group, groups_by_others))
        if group.selection is not None and not group.is_published:
            self.sync()

    def sync(self) -> None:
        """Return when all records are on disk."""
        with self._path.open("ab") as file:
            os.fsync(file.fileno())

    def add_mark(self, steps_ahead: Iterable[StepRecord] = ()) -> str:
        """Mark the place of a checkpoint, and return the mark's id. ``steps_ahead`` are recorded, and not made yet."""
        mark = CheckpointMark(secrets.token_hex(MARK_BYTES))
        self.append(mark)
        for step in steps_ahead:
            self.append(step)
        return mark.id

    def since(self, mark_id: str) -> Sequence[JournalRecord]:
        """Return the records since a checkpoint; none if its mark is missing, as after a later checkpoint."""
        places = [place for place, record in enumerate(self._records) if record == CheckpointMark(mark_id)]
        return self._records[places[0] + 1 :] if places else []

    def trim(self, mark_id: str) -> None:
        """Drop the records that a written checkpoint covers."""
        self._records = [CheckpointMark(mark_id), *self.since(mark_id)]
        self._rewrite()

    def _rewrite(self) -> None:
        temporary = self._path.with_name(f".{FILE}")
        with temporary.open("wb") as file:
            file.write(b"".join(map(_encode, self._records)))
            file.flush()
            os.fsync(file.fileno())  # it has steps whose versions are published
        temporary.replace(self._path)


def _encode(record: JournalRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
