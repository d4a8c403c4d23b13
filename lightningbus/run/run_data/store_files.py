"""A run's files as SQL, for any number of sessions, commands and pages at once: the first starts the process for all.

`lightningbus.run.run_data.files_process` is that process, so that none of ours has ClickHouse in it.
"""

import subprocess
import sys
from pathlib import Path
from weakref import finalize

from lightningbus.bus.directory_lock import find_reader, is_wanted, use_reader
from lightningbus.bus.errors import BusError
from lightningbus.run.errors import UserError

IN_USE, ERROR = "in use: ", "error: "
"""Words before a sentence that the process prints in place of its address."""
COMMAND = (sys.executable, "-P", "-m", "lightningbus.run.run_data.files_process")


class FilesInUseError(UserError):
    """Another process writes the files."""


class StoreFiles:
    """The files of a store, served at ``url`` until `close` or until another process wants to write them. Calls block.

    Raises `FilesInUseError`, or another `UserError`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if is_wanted(directory):  # no process is started only to be refused
            raise self._wanted()
        try:
            leave = use_reader(directory)
        except BusError as error:
            raise UserError(str(error)) from error
        self.close = finalize(self, leave)
        """Uses the process no more; it ends some time after its last user."""
        try:
            self.url = find_reader(directory) or _start_reader(directory)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise `FilesInUseError` if they were given up."""
        if find_reader(self.directory) != self.url:
            raise self._wanted()

    def _wanted(self) -> FilesInUseError:
        return FilesInUseError(f"another process has opened the files of run {self.directory.parent.name}")


def _start_reader(directory: Path) -> str:
    """Start the process, or find one that is faster; return its address."""
    with subprocess.Popen(
        [*COMMAND, str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
    if line.startswith(IN_USE):
        raise FilesInUseError(line.removeprefix(IN_USE))
    if not line or line.startswith(ERROR):
        raise UserError(line.removeprefix(ERROR) or f"the files in {directory} cannot be read")
    return line
