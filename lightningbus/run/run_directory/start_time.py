"""The time at which a run was started first."""

from datetime import UTC, datetime
from pathlib import Path

JOB = "job.json"
"""A training job writes it once, as it begins."""


def find_started_at(directory: Path) -> datetime:
    """Return the time at which a run began, in UTC.

    Of a run without a training job it is that of the oldest entry: parts of a directory that stay empty keep theirs.
    Raises `OSError` where the directory cannot be read.
    """
    try:
        seconds = (directory / JOB).stat().st_mtime
    except FileNotFoundError:
        entries = [*directory.glob("[!.]*"), *directory.glob("work/*")]
        seconds = min(path.lstat().st_mtime for path in (directory, *entries))
    return datetime.fromtimestamp(seconds, UTC)
