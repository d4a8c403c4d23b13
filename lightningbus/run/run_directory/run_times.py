"""Times of a run: its begin and its last activity, by the files that it alone writes.

A reader opens the bus and the store of a run, and so changes the times of their files. No reader writes these.
"""

from datetime import UTC, datetime
from pathlib import Path

JOB = "job.json"
"""A training job writes it once, as it begins."""
STARTS = (JOB, "supervised.json")
"""Records of settings, each written once, as a training begins."""
ACTIVITY = (*STARTS, "results.json", "logs/*.log", "work/*.json")
"""Files that the processes of a run write while it goes on."""


def find_started_at(directory: Path) -> datetime:
    """Return the time at which a run began, in UTC.

    Of a run without a training it is that of the oldest entry: parts of a directory that stay empty keep theirs.
    Raises `OSError` where the directory cannot be read.
    """
    if starts := _list_times(directory, STARTS):
        return _to_time(min(starts))
    entries = [*directory.glob("[!.]*"), *directory.glob("work/*")]
    return _to_time(min(path.lstat().st_mtime for path in (directory, *entries)))


def find_last_active_at(directory: Path) -> datetime:
    """Return the time at which a process of a run last wrote a record or a log of it, in UTC.

    It is the start where none did. Raises `OSError` where the directory cannot be read.
    """
    times = _list_times(directory, ACTIVITY)
    return _to_time(max(times)) if times else find_started_at(directory)


def _list_times(directory: Path, patterns: tuple[str, ...]) -> list[float]:
    return [path.stat().st_mtime for pattern in patterns for path in directory.glob(pattern)]


def _to_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
