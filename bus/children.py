"""Child processes: each the head of a group, ended with all it started, and with its parent however that ends."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from bus import processes

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PASSES = 100
"""How often a tree of processes is looked at again for those that were born while it was ended."""


def ends_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """A ``preexec_fn``: Linux sends the child ``number`` when the thread that started it is gone, by kill -9 too.

    https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html; None where there is no such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork: nothing may be loaded after it
    return lambda: libc.prctl(PR_SET_PDEATHSIG, number)


def takes_in_orphans() -> Callable[[], None] | None:
    """A ``preexec_fn``: what the child's own children leave behind becomes the child's, so that it is found and ended.

    https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html; None where there is no such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


class Guard:
    """What a process that runs untrusted code does for itself, once: `stand`."""

    standing = False
    ours: frozenset[int] = frozenset()
    """Process ids of the children that were started by `spawn` and have not been ended."""

    @classmethod
    def stand(cls) -> None:
        """Keep our memory and environment from processes of the same user, and take in whatever our children leave."""
        if sys.platform.startswith("linux"):
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_DUMPABLE, 0)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            cls.standing = True

    @classmethod
    def strays(cls) -> set[int]:
        """Children that nobody here started: what untrusted code left behind. None where no guard stands."""
        return processes.children_of(os.getpid()) - cls.ours if cls.standing else set()


async def spawn(
    *command: str,
    parent_dies: signal.Signals = signal.SIGTERM,
    prepare: Callable[[], None] | None = None,
    **options: Any,
) -> asyncio.subprocess.Process:
    """Start a program as the head of its own group; ``options`` are `asyncio.create_subprocess_exec`'s.

    ``parent_dies`` is what it is sent when this process is gone; ``prepare`` runs in the child before the program.
    Raises OSError when it cannot be started.
    """
    tied = ends_with_parent(parent_dies)

    def first() -> None:
        if tied is not None:
            tied()
        if prepare is not None:
            prepare()

    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, preexec_fn=first, **options)
    Guard.ours |= {process.pid}
    return process


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
    """SIGKILL for a process and whatever it started, also when it has ended itself.

    What has left its group is found while the process lives, and by `Guard.strays` afterwards.
    """
    if process.returncode is None:
        kill(process.pid, signal.SIGSTOP)  # or it starts more while the rest is ended
        for _ in range(PASSES):
            left = {pid for pid in processes.below(process.pid) if processes.is_alive(pid)}
            if not left:
                break
            for pid in left:
                kill(pid, signal.SIGKILL)
            await asyncio.sleep(0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    Guard.ours -= {process.pid}


def kill(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone, or be another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
