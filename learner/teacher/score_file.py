"""Scores of a teacher on disk, beside the checkpoints: what was scored is not scored again after a restart."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.trainer import Floats

FILE = "teacher.sqlite"
TABLE = (
    "CREATE TABLE IF NOT EXISTS teacher_scores (execution_id TEXT, teacher TEXT, logprobs BLOB NOT NULL, "
    "PRIMARY KEY (execution_id, teacher)) WITHOUT ROWID"
)


class ScoreFile:
    """Scores of each execution by each teacher: a value for every token of the model's answers, call after call."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / FILE, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(TABLE)

    def find(self, execution_id: str, teacher: str) -> Floats | None:
        """Return the scores of an execution by a teacher; None if it has scored none."""
        query = "SELECT logprobs FROM teacher_scores WHERE execution_id = ? AND teacher = ?"
        row = self._connection.execute(query, (execution_id, teacher)).fetchone()
        return np.frombuffer(row[0], "<f4").astype(np.float32) if row is not None else None

    def add(self, execution_id: str, teacher: str, scores: Floats) -> None:
        """Keep the scores of an execution by a teacher; the first ones count."""
        row = execution_id, teacher, scores.astype("<f4").tobytes()
        self._connection.execute("INSERT OR IGNORE INTO teacher_scores VALUES (?, ?, ?)", row)

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
                by_teacher = {each.name: scores.find(rollout.execution_id, each.name) for each in teachers}
                scored = {teacher: values for teacher, values in by_teacher.items() if values is not None}
                group.members[name] = replace(rollout, teacher_scores=scored)
    finally:
        scores.close()
