"""Judges' answers by the digest of what they were asked, in a SQLite file. Calls block for a moment."""

import sqlite3
from pathlib import Path

from msgspec import json
from msgspec.structs import asdict

from lightningbus.graders.judges.answer import JudgeAnswer

BUSY_SECONDS = 30.0


class JudgeCache:
    """Answers in a file that several processes share; without a path in memory."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path or ":memory:", timeout=BUSY_SECONDS, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, answer TEXT NOT NULL)")

    def get(self, digest: str) -> JudgeAnswer | None:
        """Return the answer to a request; None: it was not asked yet."""
        row = self._database.execute("SELECT answer FROM answers WHERE digest = ?", (digest,)).fetchone()
        return json.decode(row[0], type=JudgeAnswer) if row is not None else None

    def put(self, digest: str, answer: JudgeAnswer) -> None:
        """Keep an answer; the first one to a request stays."""
        self._database.execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?)", (digest, json.encode(asdict(answer)).decode())
        )

    def close(self) -> None:
        """Close the file."""
        self._database.close()
