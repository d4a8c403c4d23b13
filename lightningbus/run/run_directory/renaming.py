"""Renames a run's directory; the store's rows keep the id that they were written with."""

import os
from dataclasses import replace
from pathlib import Path

from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.labels import change_labels
from lightningbus.run.run_directory.lookup import find_changeable_run
from lightningbus.run.run_directory.occupancy import lock_run
from lightningbus.run.settings.policy_options import NAME
from lightningbus.schemas.ids import LATEST


def rename_run(old: str, new: str, runs: Path = RUNS) -> RunDirectory:
    """Rename a run that has ended; its labels keep the id of its rows. Where it is the latest it stays so.

    Raises `UserError` for a name that is wrong or taken, `bus.BusError` while a process works in the directory.
    """
    run = find_changeable_run(old, runs)
    if not NAME.fullmatch(new) or new == LATEST:
        raise UserError(f"{new!r} is not a name for a run: letters, digits, _ and -, at most 64, and not {LATEST!r}")
    target = runs / new
    if os.path.lexists(target):
        raise UserError(f"{target} is there already: use another name")
    latest = RunDirectory.latest(runs)
    is_latest = latest is not None and latest.path == run.path.resolve()
    with lock_run(run):
        run_id = run.run_id
        change_labels(run.path, lambda labels: replace(labels, run_id=run_id if run_id != new else ""))
        try:
            run.path.rename(target)
        except OSError as error:
            raise UserError(f"{run.path} cannot be renamed: {error.strerror}") from error
        renamed = RunDirectory(target)
        if is_latest:
            renamed.make_latest()
    return renamed
