"""Scores of a teacher on disk, beside the checkpoints: what was scored is not scored again after a restart."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.trainer import Floats

FILE = "teacher.sqlite"
TABLE = "CREATE TABLE IF NOT EXISTS scores (execution_id TEXT PRIMARY KEY, logprobs BLOB NOT NULL) WITHOUT ROWID"


class ScoreFile:
    """Scores of each execution: a log-probability for every token of the model's answers in it, call after call."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / FILE, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(TABLE)

    def find(self, execution_id: str) -> Floats | None:
        """Return the scores of an execution; None if it is not scored."""
        row = self._connection.execute("SELECT logprobs FROM scores WHERE execution_id = ?", (execution_id,)).fetchone()
        return np.frombuffer(row[0], "<f4").astype(np.float32) if row is not None else None

    def add(self, execution_id: str, scores: Floats) -> None:
        """Keep the scores of an execution; the first ones count."""
        blob = scores.astype("<f4").tobytes()
        self._connection.execute("INSERT OR IGNORE INTO scores VALUES (?, ?)", (execution_id, blob))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def add_recorded_scores(groups: Iterable[RolloutGroup], directory: Path) -> None:
    """Add the scores of a learner's directory to the rollouts that it has trained; those without any stay as they are.

    Raises FileNotFoundError if the directory has no scores.
    """
    if not (directory / FILE).exists():
        raise FileNotFoundError(f"{directory} has no {FILE}, with the scores of the teacher")
    scores = ScoreFile(directory)
    try:
        for group in groups:
            for name, rollout in list(group.members.items()):
                group.members[name] = replace(rollout, teacher_logprobs=scores.find(rollout.execution_id))
    finally:
        scores.close()
