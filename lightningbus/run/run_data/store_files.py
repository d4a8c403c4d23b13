"""Serves a run's files to SQL, in a process of its own, so that none of ours has ClickHouse in it.

The process takes ``DIRECTORY [--shared]``. It prints the address, or ``in use: `` or ``error: `` and a sentence, and
ends when its input closes. With ``--shared`` it also ends as soon as another process wants the files.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from weakref import finalize

from lightningbus.bus.directory_lock import is_wanted, lock_directory, lock_for_reading
from lightningbus.common.aio import first_completed
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.run.errors import UserError

IN_USE, ERROR = "in use: ", "error: "
SHARED = "--shared"
COMMAND = (sys.executable, "-P", "-m", "lightningbus.run.run_data.store_files")
WANTED_SECONDS = 0.2
"""Between two checks whether another process wants the files."""


class FilesInUseError(UserError):
    """Another process has the files."""


class StoreFiles:
    """The files of a store, served until `close`. Calls block.

    Raises `FilesInUseError`, or another `UserError`. ``is_shared``: they are given up as soon as another process wants
    them.
    """

    def __init__(self, directory: Path, is_shared: bool) -> None:
        self.directory = directory
        if is_shared and is_wanted(directory):  # no process is started only to be refused
            raise self._wanted()
        self._process = subprocess.Popen(
            [*COMMAND, str(directory), *([SHARED] if is_shared else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process
            text=True,
        )
        self.close = finalize(self, self._process.communicate)
        """Ends the process, and waits for that."""
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if self.url.startswith(IN_USE):
            self.close()
            raise FilesInUseError(self.url.removeprefix(IN_USE))
        if not self.url or self.url.startswith(ERROR):
            self.close()
            raise UserError(self.url.removeprefix(ERROR) or f"the files in {directory} cannot be read")

    def check(self) -> None:
        """Raise `FilesInUseError` if they were given up."""
        if self._process.poll() is not None:
            raise self._wanted()

    def _wanted(self) -> FilesInUseError:
        return FilesInUseError(f"another process has opened the files of run {self.directory.parent.name}")


async def serve(directory: Path, is_shared: bool) -> None:
    """Serve the store in ``directory`` until standard input closes; shared: or another process wants it."""
    try:
        from lightningbus.store.embedded.engine import EngineBusyError  # takes long to import
        from lightningbus.store.embedded.serving import serve_readonly
    except ModuleNotFoundError as error:
        print(f"{ERROR}{describe_missing_module(error.name, 'store')}", flush=True)
        return
    try:
        async with serve_readonly(directory, lock_for_reading if is_shared else lock_directory) as url:
            print(url, flush=True)
            await first_completed(_wait_for_input_end(), *([_wait_until_wanted(directory)] if is_shared else []))
    except EngineBusyError as error:
        print(f"{IN_USE}{error}", flush=True)


async def _wait_for_input_end() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


async def _wait_until_wanted(directory: Path) -> None:
    while True:
        await asyncio.sleep(WANTED_SECONDS)
        if is_wanted(directory):
            return


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), SHARED in sys.argv[2:]))
