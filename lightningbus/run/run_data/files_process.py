"""The process that serves a run's files to SQL: ``python -m lightningbus.run.run_data.files_process DIRECTORY``.

It prints its address, or that of a process that serves them already, or a sentence after one of two words. Then it
belongs to nobody. It ends as soon as another process wants to write the files, and some time after its last user: the
next command then pays nothing for the opening.
"""

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from lightningbus.bus.directory_lock import (
    DirectoryInUseError,
    announce_reader,
    find_reader,
    is_wanted,
    leave_unused,
    lock_for_reading,
)
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.run.run_data.store_files import ERROR, IN_USE

UNUSED_SECONDS = 60.0
"""Seconds for which the files stay open after their last user."""
UNUSED_VARIABLE = "LIGHTNINGBUS_FILES_OPEN_SECONDS"
"""Names another number of seconds."""
CHECK_SECONDS = 0.2
"""Between two checks whether another process wants the files."""
PROBE_SECONDS = 0.5
"""A lock that ends within this time was a probe of another process."""
HANDOVER_SECONDS = 20.0
"""Seconds that another reader has to leave, or to announce its address."""


def main() -> None:
    """Serve the directory that the command line names, by a process without a parent that would have to wait for it."""
    if os.fork():
        os._exit(0)
    asyncio.run(serve(Path(sys.argv[1]), parse_seconds(os.environ.get(UNUSED_VARIABLE, ""))))


def parse_seconds(text: str) -> float:
    """Parse a number of seconds of at least 0; anything else is the default. Pure."""
    with suppress(ValueError):
        return seconds if (seconds := float(text)) >= 0 else UNUSED_SECONDS
    return UNUSED_SECONDS


async def serve(directory: Path, unused_seconds: float) -> None:
    """Serve the store in ``directory`` while it is used and nobody wants to write it."""
    try:
        from lightningbus.store.embedded.engine import EngineBusyError  # takes long to import
        from lightningbus.store.embedded.serving import serve_readonly
    except ModuleNotFoundError as error:
        print(f"{ERROR}{describe_missing_module(error.name, 'store')}", flush=True)
        return
    started = time.monotonic()
    while True:
        try:
            async with serve_readonly(directory, lock_for_reading) as url:
                announce_reader(directory, url)
                print(url, flush=True)
                _close_streams()
                await _wait_to_leave(directory, unused_seconds)
                return
        except EngineBusyError as error:
            seconds = time.monotonic() - started
            if url := find_reader(directory):
                print(url, flush=True)
                return
            patience = PROBE_SECONDS if is_wanted(directory) else HANDOVER_SECONDS
            if not isinstance(error.__cause__, DirectoryInUseError) or seconds > patience:
                print(f"{IN_USE}{error}", flush=True)
                return
            await asyncio.sleep(CHECK_SECONDS / 2)  # nobody tells when a lock is free


def _close_streams() -> None:
    """Leave the output of the command that started this process to that command: who reads it waits for its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


async def _wait_to_leave(directory: Path, unused_seconds: float) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if is_wanted(directory):
            announce_reader(directory, "")
            return
        if leave_unused(directory, unused_seconds):
            return


if __name__ == "__main__":
    main()
