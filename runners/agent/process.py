"""A running agent process: its streams, its limits, and its end with everything it leaves behind."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.processes import procfs
from lightningbus.common.processes.subprocesses import MAX_SWEEPS, ProcessGuard, kill, kill_group
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.output import OutputForwarder

log = logging.getLogger(__name__)

MAX_LINE = 64 * 1024 * 1024
"""Longest answer of an agent that is read."""
READ_BYTES = 1024 * 1024
OUTPUT_DRAIN_SECONDS = 1.0
"""Seconds for which the output of an ended process is still read."""
MAX_ZOMBIES = 100
"""Children that a warm process may leave unreaped; each occupies a process id of the system."""
POLL_SECONDS = 0.5
"""Between two checks of the limits; the kernel does not limit a whole tree of processes by itself."""


class RunningProcess(Protocol):
    """A running program of an agent: a process of this machine, or one in a container."""

    limits: ResourceLimits
    kill_reason: str
    """A sentence about the limit that ended it, if one did."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""

    @property
    def has_too_many_zombies(self) -> bool:
        """Whether it has more unreaped children than it should."""

    def write(self, data: bytes, last: bool = False) -> None:
        """Write to its standard input; close it after ``last``."""

    async def readline(self) -> bytes:
        """Read the next line of standard output, empty at the end; raise OSError, or ValueError for a line too long."""

    async def read(self) -> bytes:
        """Read some of its standard output, nothing at the end; raise OSError."""

    async def read_all(self) -> bytes:
        """Read its standard output to the end; raise ValueError beyond `MAX_LINE` bytes."""

    async def wait(self) -> int:
        """Wait for its end; return its status."""

    async def exit_reason(self) -> str:
        """Wait for its end; describe it in a sentence."""

    async def stop(self) -> None:
        """End it and all it started."""


async def collect_output(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Read to the end; raise ValueError beyond `MAX_LINE` bytes."""
    output = bytearray()
    while data := await read():
        output += data
        if len(output) > MAX_LINE:
            raise ValueError(f"more than {MAX_LINE} bytes")
    return bytes(output)


class AgentProcess:
    """A running agent process and its streams; ``kill_reason`` names the limit that ended it."""

    def __init__(
        self, process: asyncio.subprocess.Process, scratch: Path, limits: ResourceLimits, output: OutputForwarder
    ) -> None:
        self.process, self.limits = process, limits
        self.kill_reason = ""
        self._scratch, self._output = scratch, output
        self._end = asyncio.create_task(process.wait())
        self._reader: asyncio.StreamReader
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, requests: socket.socket, replies: socket.socket) -> None:
        """Open our ends of its standard input and output."""
        _, writer = await asyncio.open_connection(sock=requests)
        self._reader, other = await asyncio.open_connection(sock=replies, limit=MAX_LINE)
        self._writers = [writer, other]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    @property
    def has_too_many_zombies(self) -> bool:
        """Whether it has more unreaped children than it should; all orphans below it become its own."""
        children = procfs.children_of(self.process.pid)
        return len(children) > MAX_ZOMBIES and sum(not procfs.is_alive(pid) for pid in children) > MAX_ZOMBIES

    def write(self, data: bytes, last: bool = False) -> None:
        """Write to its standard input; close it after ``last``."""
        writer = self._writers[0]
        if not writer.is_closing():
            writer.write(data)
            if last:
                writer.write_eof()

    async def readline(self) -> bytes:
        """Read the next line of standard output, empty at the end; raise OSError, or ValueError for a line too long."""
        return await self._read_or_exit(self._reader.readline())

    async def read(self) -> bytes:
        """Read some of its standard output, nothing at the end; raise OSError."""
        return await self._read_or_exit(self._reader.read(READ_BYTES))

    async def read_all(self) -> bytes:
        """Read its standard output to the end; raise ValueError beyond `MAX_LINE` bytes."""
        return await collect_output(self.read)

    async def wait(self) -> int:
        """Wait for the end of the process; return its status."""
        return await self.process.wait()

    async def exit_reason(self) -> str:
        """Wait for the end of the process; describe it in a sentence."""
        code = await self.wait()
        return self.kill_reason or self.limits.explain_exit(code)

    async def stop(self) -> None:
        """End it and all it started, and remove its files."""
        for writer in self._writers:
            writer.close()
        await kill_group(self.process)
        self._output.close()
        await asyncio.to_thread(remove_directory, self._scratch)

    async def _read_or_exit(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        """Await a read; return nothing once the process has ended, even if a descendant still holds its output open."""
        read = asyncio.ensure_future(reading)
        try:
            await asyncio.wait({read, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                await asyncio.wait({read}, timeout=OUTPUT_DRAIN_SECONDS)
            return read.result() if read.done() else b""
        finally:
            read.cancel()


class ProcessWatchdog:
    """Ends agents that exceed their limits, and orphans of agents; an async context manager."""

    def __init__(self) -> None:
        self._agents: set[AgentProcess] = set()
        self._seen: set[int] = set()

    def watch(self, agent: AgentProcess) -> None:
        """Enforce the limits of this agent until it ends."""
        self._agents.add(agent)

    async def measure_memory(self) -> float:
        """Return the bytes of memory that an agent takes on average with all processes it has started."""
        heads = [agent.process.pid for agent in self._agents if agent.is_running]
        return await asyncio.to_thread(lambda: sum(map(_measure_tree, heads)) / max(1, len(heads)))

    async def __aenter__(self) -> "ProcessWatchdog":
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exit: object) -> None:
        """End every orphan; all agents have been stopped before."""
        await cancel_and_wait(self._watching)
        for _ in range(MAX_SWEEPS):
            if not self._kill_orphans(at_once=True):
                return
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._enforce_limits()
            except Exception:  # the next check may work; without checks nothing is limited
                log.exception("the limits of the agents could not be checked")

    async def _enforce_limits(self) -> None:
        for agent in [agent for agent in self._agents if not agent.is_running]:  # before another has its process id
            self._agents.discard(agent)
            await kill_group(agent.process)
        for agent in [agent for agent in self._agents if agent.limits.is_watched and not agent.kill_reason]:
            reason = await asyncio.to_thread(agent.limits.find_violation, agent.process.pid)
            if reason and agent.is_running:
                agent.kill_reason = reason
                log.warning("%s", reason)
                await kill_group(agent.process)
        self._kill_orphans()

    def _kill_orphans(self, at_once: bool = False) -> bool:
        """End orphans, or only those seen twice unless ``at_once``: a new one may be ours. Return whether any exist."""
        orphans = ProcessGuard.orphans()
        for pid in orphans if at_once else orphans & self._seen:
            for child in (pid, *procfs.descendants(pid)):
                kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = orphans
        return bool(orphans)


def _measure_tree(head: int) -> int:
    return procfs.total_bytes((head, *procfs.descendants(head)))


def remove_directory(scratch: Path) -> None:
    """Remove an agent's directory, or as much of it as can be removed."""
    try:
        try:
            shutil.rmtree(scratch)
        except PermissionError:
            _unlock(str(scratch))
            shutil.rmtree(scratch)
        except RecursionError:  # a tree too deep for a function that calls itself
            subprocess.run(["rm", "-rf", "--", str(scratch)], capture_output=True, check=False)
            if scratch.exists():
                raise
    except (OSError, RecursionError) as error:  # files of another user's
        log.warning("what an agent left in %s cannot be removed: %s", scratch, error)
        with contextlib.suppress(RecursionError):
            shutil.rmtree(scratch, ignore_errors=True)  # the rest of it


def _unlock(directory: str) -> None:
    """Make directories readable that the agent made unreadable."""
    Path(directory).chmod(0o700)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _unlock(entry.path)
