"""A running agent process: what is said to it and heard of it, what it takes, and its end with all it leaves."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from common import procfs
from common.aio import cancel_and_wait
from common.subprocesses import MAX_SWEEPS, ProcessGuard, kill, kill_group
from runners.agent.limits import ResourceLimits
from runners.agent.output import OutputForwarder

log = logging.getLogger(__name__)

MAX_LINE = 64 * 1024 * 1024
"""Longest answer of an agent that is read."""
READ_BYTES = 1024 * 1024
OUTPUT_DRAIN_SECONDS = 1.0
"""How long the output of a process that has ended is listened to."""
MAX_ZOMBIES = 100
"""Ended children that a warm process may have not asked after; each takes a process id of the system's."""
POLL_SECONDS = 0.5
"""Between two looks at what agents take; the kernel says nothing of a whole tree of processes by itself."""


class AgentProcess:
    """A running agent process, and the streams to it; ``why`` says which limit ended it."""

    def __init__(
        self, process: asyncio.subprocess.Process, scratch: Path, limits: ResourceLimits, printed: OutputForwarder
    ) -> None:
        self.process, self.limits = process, limits
        self.kill_reason = ""
        self._scratch, self._printed = scratch, printed
        self._end = asyncio.create_task(process.wait())
        self._reader: asyncio.StreamReader
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, requests: socket.socket, replies: socket.socket) -> None:
        """Our ends of its standard input and output."""
        _, writer = await asyncio.open_connection(sock=requests)
        self._reader, other = await asyncio.open_connection(sock=replies, limit=MAX_LINE)
        self._writers = [writer, other]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    @property
    def has_too_many_zombies(self) -> bool:
        """Whether it has left more children unburied than a process should; it is given all orphans of its own."""
        children = procfs.children_of(self.process.pid)
        return len(children) > MAX_ZOMBIES and sum(not procfs.is_alive(pid) for pid in children) > MAX_ZOMBIES

    def write(self, data: bytes, last: bool = False) -> None:
        """To its standard input, which ``last`` ends."""
        writer = self._writers[0]
        if not writer.is_closing():
            writer.write(data)
            if last:
                writer.write_eof()

    async def readline(self) -> bytes:
        """The next of its standard output, empty when there will be none; raises OSError, ValueError for a bad one."""
        return await self._read_or_exit(self._reader.readline())

    async def read_all(self) -> bytes:
        """Its standard output to the end; raises ValueError when that does not come within `MAX_LINE`."""
        printed = bytearray()
        while data := await self._read_or_exit(self._reader.read(READ_BYTES)):
            printed += data
            if len(printed) > MAX_LINE:
                raise ValueError(f"more than {MAX_LINE} bytes")
        return bytes(printed)

    async def exit_reason(self) -> str:
        """How it ended, as a sentence; waits until it has."""
        code = await self.process.wait()
        return self.kill_reason or self.limits.ended(code)

    async def stop(self) -> None:
        """End it and all it started, and remove its files."""
        for writer in self._writers:
            writer.close()
        await kill_group(self.process)
        self._printed.close()
        await asyncio.to_thread(remove, self._scratch)

    async def _read_or_exit(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        """What is read; nothing once the process has ended, though something it left may hold its output open."""
        read = asyncio.ensure_future(reading)
        try:
            await asyncio.wait({read, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                await asyncio.wait({read}, timeout=OUTPUT_DRAIN_SECONDS)
            return read.result() if read.done() else b""
        finally:
            read.cancel()


class ProcessWatchdog:
    """Ends agents that take more than they may, and what agents have left behind; an async context manager."""

    def __init__(self) -> None:
        self._inmates: set[AgentProcess] = set()
        self._seen: set[int] = set()

    def keep(self, inmate: AgentProcess) -> None:
        """From now on, until it ends."""
        self._inmates.add(inmate)

    async def __aenter__(self) -> "ProcessWatchdog":
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exit: object) -> None:
        """Everything has been stopped; nothing of it is left."""
        await cancel_and_wait(self._watching)
        for _ in range(MAX_SWEEPS):
            if not self._sweep(at_once=True):
                return
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look()
            except Exception:  # the next look may do better, and without any nobody is held to anything
                log.exception("what agents take could not be looked at")

    async def _look(self) -> None:
        for inmate in [
            inmate for inmate in self._inmates if not inmate.is_running
        ]:  # before another has its process id
            self._inmates.discard(inmate)
            await kill_group(inmate.process)
        for inmate in [inmate for inmate in self._inmates if inmate.limits.watched and not inmate.kill_reason]:
            why = await asyncio.to_thread(inmate.limits.find_violation, inmate.process.pid)
            if why and inmate.is_running:
                inmate.kill_reason = why
                log.warning("%s", why)
                await kill_group(inmate.process)
        self._sweep()

    def _sweep(self, at_once: bool = False) -> bool:
        """End strays; whether there were any. Not ``at_once``: if seen twice, as a new one may yet be ours."""
        strays = ProcessGuard.orphans()
        for pid in strays if at_once else strays & self._seen:
            for child in (pid, *procfs.descendants(pid)):
                kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = strays
        return bool(strays)


def remove(scratch: Path) -> None:
    """An agent's directory, with all that can be removed of it."""
    try:
        try:
            shutil.rmtree(scratch)
        except PermissionError:
            _unlock(str(scratch))
            shutil.rmtree(scratch)
    except (OSError, RecursionError) as error:  # files of another user's, or a tree too deep
        log.warning("what an agent left in %s cannot be removed: %s", scratch, error)
        with contextlib.suppress(RecursionError):
            shutil.rmtree(scratch, ignore_errors=True)  # the rest of it


def _unlock(directory: str) -> None:
    """Directories that an agent closed to itself are ours to open."""
    Path(directory).chmod(0o700)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _unlock(entry.path)
