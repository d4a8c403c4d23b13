"""Child processes: each the head of a process group, ended with its parent however that ends."""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1


def ends_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """A ``preexec_fn``: Linux sends the child ``number`` when the thread that started it is gone, by kill -9 too.

    https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html; None where there is no such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork: nothing may be loaded after it
    return lambda: libc.prctl(PR_SET_PDEATHSIG, number)


async def spawn(
    *command: str, parent_dies: signal.Signals = signal.SIGTERM, data_bytes: int | None = None, **options: Any
) -> asyncio.subprocess.Process:
    """Start a program as the head of its own group; ``options`` are `asyncio.create_subprocess_exec`'s.

    ``parent_dies`` is what it is sent when this process is gone; ``data_bytes`` the most memory it may take. Raises
    OSError when it cannot be started.
    """
    tied = ends_with_parent(parent_dies)

    def prepare() -> None:
        if tied is not None:
            tied()
        if data_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))

    return await asyncio.create_subprocess_exec(*command, start_new_session=True, preexec_fn=prepare, **options)


async def end(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """SIGTERM, after ``seconds`` SIGKILL; the rest of its group goes with it. Whether it went by itself."""
    gently = True
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            gently = False
    await kill_group(process)
    return gently


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL for a process and whatever it started, also when it has ended itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
