"""Deletes a run's directory, and nothing that a link in it leads to."""

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.lookup import list_run_names
from lightningbus.run.run_directory.occupancy import lock_run
from lightningbus.run.run_directory.run_times import find_started_at
from lightningbus.schemas.ids import LATEST

DELETED = ".deleted-"
"""Prefix of a directory that is being deleted."""


def delete_run(run: RunDirectory, runs: Path = RUNS) -> None:
    """Delete a run that has ended; if it was the latest, the one that was started before it is the latest then.

    The directory loses its name first, so that no part of a run is left under it. The remains of a deletion that was
    interrupted go too. Raises `bus.BusError` while a process works in the directory, `UserError` where files cannot be
    deleted.
    """
    latest = RunDirectory.latest(runs)
    is_latest = latest is not None and latest.path == run.path.resolve()
    with lock_run(run):
        hidden = run.path.with_name(f"{DELETED}{run.path.name}-{os.getpid()}")
        try:
            run.path.rename(hidden)
        except OSError as error:
            raise UserError(f"{run.path} cannot be deleted: {error.strerror}") from error
        if is_latest:
            _choose_latest(runs)
        for directory in runs.glob(f"{DELETED}*"):
            try:
                shutil.rmtree(directory, onerror=_ignore_missing)
            except OSError as error:
                raise UserError(f"{directory} cannot be deleted whole: {error.strerror}") from error


def _choose_latest(runs: Path) -> None:
    others = [RunDirectory(runs / name) for name in list_run_names(runs)]
    if others:
        max(others, key=lambda run: find_started_at(run.path)).make_latest()
    else:
        (runs / LATEST).unlink(missing_ok=True)


def _ignore_missing(function: Any, path: str, info: tuple[type[BaseException], BaseException, TracebackType]) -> None:
    """Let pass that another process deletes the same remains."""
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
