"""Scores of a teacher on disk, beside the checkpoints: what was scored is not scored again after a restart."""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.schemas.byte_planes import join_planes, split_planes

FILE = "teacher.sqlite"
TABLE = (
    "CREATE TABLE IF NOT EXISTS teacher_scores (execution_id TEXT, teacher TEXT, top_k INTEGER, logprobs BLOB, "
    "top_ids BLOB, top_logprobs BLOB, PRIMARY KEY (execution_id, teacher, top_k))"
)
COLUMNS = {"logprobs": "<f4", "top_ids": "<i4", "top_logprobs": "<f4"}
"""Arrays of scores, and the form of a value. A blob has their byte planes, compressed."""
QUERY = f"SELECT {', '.join(COLUMNS)} FROM teacher_scores WHERE execution_id = ? AND teacher = ? AND top_k = ?"
INSERT = f"INSERT OR IGNORE INTO teacher_scores VALUES (?, ?, ?, {', '.join('?' * len(COLUMNS))})"


class ScoreFile:
    """Scores of each execution by each teacher: those of every token of the model's answers, call after call."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / FILE, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(TABLE)

    def find(self, execution_id: str, teacher: str, top_k: int) -> TeacherScores | None:
        """Return a teacher's scores of an execution with ``top_k`` likeliest tokens; None if there are none."""
        row = self._connection.execute(QUERY, (execution_id, teacher, top_k)).fetchone()
        if row is None:
            return None
        logprobs, *top = (_unpack(blob, form) for blob, form in zip(row, COLUMNS.values(), strict=True))
        return TeacherScores(logprobs, *(values.reshape(len(logprobs), top_k) for values in top))

    def add(self, execution_id: str, teacher: str, scores: TeacherScores) -> None:
        """Keep a teacher's scores of an execution; the first ones count."""
        blobs = [_pack(getattr(scores, name), form) for name, form in COLUMNS.items()]
        self._connection.execute(INSERT, (execution_id, teacher, scores.top_k, *blobs))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def add_recorded_scores(groups: Iterable[RolloutGroup], directory: Path, teachers: Sequence[TeacherSettings]) -> None:
    """Add the teachers' scores in a learner's directory to the rollouts that it has trained.

    Raises FileNotFoundError if the directory has no scores.
    """
    if not (directory / FILE).exists():
        raise FileNotFoundError(f"{directory} has no {FILE}, with the scores of the teacher")
    scores = ScoreFile(directory)
    try:
        for group in groups:
            for name, rollout in list(group.members.items()):
                by_teacher = {each.name: scores.find(rollout.execution_id, each.name, each.top_k) for each in teachers}
                scored = {teacher: values for teacher, values in by_teacher.items() if values is not None}
                group.members[name] = replace(rollout, teacher_scores=scored)
    finally:
        scores.close()


def _pack(values: NDArray[Any], form: str) -> bytes:
    return zlib.compress(split_planes(values.astype(form)).data, 1)


def _unpack(blob: bytes, form: str) -> NDArray[Any]:
    values = join_planes(np.frombuffer(zlib.decompress(blob), np.uint8), form)
    return values.astype(values.dtype.newbyteorder("="))
