"""The logs and checkpoints of the runs of this directory, for the page. Links are never followed.

Checkpoints are listed and not sent: a run's directory is its owner's alone, and every user of the machine reaches the
page.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.lookup import list_run_names
from lightningbus.store.ui.run_files import FileList, RunFile

LOGS = "logs"
FOLDERS = (LOGS, "checkpoints")
"""Parts of a run's directory whose files are listed: others hold keys, and data that a process has open."""
MAX_FILES = 500


class LocalFiles:
    """Files of runs, by the names of their directories and by their ids."""

    def list(self, run_id: str) -> FileList | None:
        """List the logs and checkpoints of a run; None: it has no directory here. Blocks."""
        directory = find_directory(run_id)
        if directory is None:
            return None
        files = sorted(walk_files(directory.path), key=lambda file: (-file.changed_ms, file.path))
        return FileList(directory.path.resolve(), files[:MAX_FILES], len(files[MAX_FILES:]))

    def find(self, run_id: str, path: str) -> Path | None:
        """Find a log that `list` has by its path; None for any other file. Blocks."""
        if not path.startswith(f"{LOGS}/"):
            return None
        listed = self.list(run_id)
        if listed is None or path not in {file.path for file in listed.files}:
            return None
        return listed.directory / path


def find_directory(run_id: str) -> RunDirectory | None:
    """Find the run whose directory has this name, else the latest of this id."""
    names = list_run_names(RUNS) if RUNS.is_dir() else []
    if run_id in names:
        return RunDirectory(RUNS / run_id)
    latest = RunDirectory.latest()
    return latest if latest is not None and latest.path.name in names and latest.run_id == run_id else None


def walk_files(directory: Path) -> Iterator[RunFile]:
    """Yield the regular files below the folders that are shown, without those behind a link."""
    for folder in FOLDERS:
        if (directory / folder).is_symlink():
            continue
        for parent, _, names in os.walk(directory / folder):
            for name in names:
                path = Path(parent) / name
                try:
                    status = path.lstat()
                except OSError:  # it is gone
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield RunFile(path.relative_to(directory).as_posix(), status.st_size, 1000 * status.st_mtime)
