"""Answers SQL on a finished run's files until its input closes; its arguments are ``DIRECTORY [--shared]``.

Prints the address, or ``error: `` and a sentence. A process of its own keeps ClickHouse out of the caller's process,
where only one directory could be open. With ``--shared`` it ends as soon as another process wants the files.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lightningbus.bus.directory_lock import is_wanted, lock_directory, lock_for_reading
from lightningbus.common.aio import first_completed
from lightningbus.run.errors import UserError
from lightningbus.store.embedded.engine import EngineBusyError
from lightningbus.store.service import serve_readonly

ERROR = "error: "
SHARED = "--shared"
COMMAND = (sys.executable, "-P", "-m", "lightningbus.run.run_data.store_files")
WANTED_SECONDS = 0.2
"""Between two checks whether another process wants the files."""


@asynccontextmanager
async def open_shared_files(directory: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The address of the store in ``directory`` while the block runs, and the process that ends when it is wanted.

    Raises `UserError` when the files cannot be read.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(directory), SHARED, stdin=pipe, stdout=pipe, start_new_session=True
    )  # in a session of its own: Ctrl-C is for this process
    assert process.stdout is not None and process.stdin is not None
    try:
        answer = (await process.stdout.readline()).decode().strip()
        if not answer or answer.startswith(ERROR):
            raise UserError(answer.removeprefix(ERROR) or f"the files in {directory} cannot be read")
        yield answer, process
    finally:
        process.stdin.close()
        await asyncio.shield(process.wait())


async def serve(directory: Path, is_shared: bool) -> None:
    """Serve the store in ``directory`` until standard input closes; shared: or another process wants it."""
    try:
        async with serve_readonly(directory, lock_for_reading if is_shared else lock_directory) as url:
            print(url, flush=True)
            await first_completed(_wait_for_input_end(), *([_wait_until_wanted(directory)] if is_shared else []))
    except EngineBusyError as error:
        print(f"{ERROR}{error}", flush=True)


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
