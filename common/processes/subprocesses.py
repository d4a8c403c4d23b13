"""Child processes: each the head of a group, ended with all it started, and with its parent however that ends."""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from lightningbus.common.processes import procfs
from lightningbus.common.processes.priority import lower_priority

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
CLOSE_RANGE_CLOEXEC = 4
STANDARD_STREAMS = 3
MAX_SWEEPS = 100
"""Passes over a process tree that ends it, to catch children born meanwhile."""


def set_pdeathsig(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """Build a ``preexec_fn`` by which Linux sends the child ``number`` when its starting thread dies.

    A kill -9 counts too: https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html; None where there is no
    such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork: nothing may be loaded after it
    return lambda: libc.prctl(PR_SET_PDEATHSIG, number)


def set_child_subreaper() -> Callable[[], None] | None:
    """Build a ``preexec_fn`` that makes the child adopt its orphaned descendants, so that they are found and ended.

    https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html; None where there is no such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_cloexec() -> Callable[[], None]:
    """Build a ``preexec_fn`` that closes all open files but the standard streams when the program starts.

    asyncio's own loop closes them, uvloop's does not: it trusts every file to have been opened with close-on-exec.
    """
    close_range = getattr(
        ctypes.CDLL(None), "close_range", None
    )  # https://man7.org/linux/man-pages/man2/close_range.2.html

    def close() -> None:
        if close_range is not None and close_range(STANDARD_STREAMS, ctypes.c_uint(-1), CLOSE_RANGE_CLOEXEC) == 0:
            return
        for path in list(Path("/dev/fd").iterdir()):
            if int(path.name) >= STANDARD_STREAMS:
                with contextlib.suppress(OSError):
                    os.set_inheritable(int(path.name), False)

    return close


class ProcessGuard:
    """Protections of this process, set once before it starts children: `raise_fd_limit`, and `enable` for untrusted
    ones.
    """

    enabled = False
    tracked: ClassVar[dict[int, asyncio.subprocess.Process]] = {}
    """Children started by `spawn` whose process group has not been ended, by process id."""
    child_fd_limit: int | None = None
    """Most open files a program is started with; None: as many as this process."""

    @classmethod
    def enable(cls) -> None:
        """Hide our memory and environment from processes of the same user, and adopt our children's orphans."""
        if sys.platform.startswith("linux"):
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_DUMPABLE, 0)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            cls.enabled = True

    @classmethod
    def raise_fd_limit(cls) -> None:
        """Let this process have as many open files as it may; what it starts gets as many as it was given."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # a system that has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            cls.child_fd_limit = soft

    @classmethod
    def orphans(cls) -> set[int]:
        """Find orphans: children left behind by untrusted code. The set is empty unless the guard is enabled."""
        return procfs.children_of(os.getpid()) - cls.tracked.keys() if cls.enabled else set()


async def spawn(
    *command: str,
    pdeathsig: signal.Signals = signal.SIGTERM,
    prepare: Callable[[], None] | None = None,
    niceness: int = 0,
    **options: Any,
) -> asyncio.subprocess.Process:
    """Start a program as the head of its own group, with its standard streams, ``pass_fds``, and no other file of ours.

    ``options`` are `asyncio.create_subprocess_exec`'s; ``pdeathsig`` is the signal sent to it when this process is
    gone; ``prepare`` runs in the child before the program; ``niceness`` is added to this process's own. Raises OSError
    when it cannot be started.
    """
    tied, files, close = set_pdeathsig(pdeathsig), ProcessGuard.child_fd_limit, set_cloexec()
    passed: tuple[int, ...] = options.get("pass_fds", ())

    def first() -> None:
        close()
        for descriptor in passed:
            os.set_inheritable(descriptor, True)
        if tied is not None:
            tied()
        lower_priority(niceness)
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        if prepare is not None:
            prepare()

    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, preexec_fn=first, **options)
    ProcessGuard.tracked[process.pid] = process
    return process


async def terminate(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Send SIGTERM, after ``seconds`` SIGKILL, also to the rest of its group; return whether it ended by itself."""
    graceful = True
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            graceful = False
    await kill_group(process)
    return graceful


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to a process and its group, also when it has ended itself.

    Descendants that left the group are found while the process lives, and by `ProcessGuard.orphans` afterwards. Done
    once: later its id may be another's.
    """
    if ProcessGuard.tracked.get(process.pid) is not process:
        await process.wait()
        return
    if process.returncode is None:
        kill(process.pid, signal.SIGSTOP)  # or it starts more while the rest is ended
        for _ in range(MAX_SWEEPS):
            left = {pid for pid in procfs.descendants(process.pid) if procfs.is_alive(pid)}
            if not left:
                break
            for pid in left:
                kill(pid, signal.SIGKILL)
            await asyncio.sleep(0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    if ProcessGuard.tracked.get(process.pid) is process:
        del ProcessGuard.tracked[process.pid]


def kill(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone, or be another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
