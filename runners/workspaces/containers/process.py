"""Programs in a container, with the interface of those that are processes of this machine."""

import asyncio
import base64
import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.common.aio import cancel_and_wait
from lightningbus.runners.agent.launcher import AgentLauncher, AgentStartError
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.output import OutputForwarder, SlotOutput
from lightningbus.runners.agent.process import MAX_LINE, collect_output
from lightningbus.runners.workspaces.containers import guest_script as wire
from lightningbus.runners.workspaces.containers.guest import Channel, Guest, GuestLostError
from lightningbus.runners.workspaces.containers.guest_files import CHUNK, DATA

KILLED = (-9, 137)
LOST_STATUS = -1


class ContainerProcess:
    """A running program in a container; see `lightningbus.runners.agent.process.RunningProcess`."""

    def __init__(self, guest: Guest, number: int, channel: Channel, launcher: AgentLauncher) -> None:
        self.limits: ResourceLimits = launcher.limits
        self.kill_reason = ""
        self.returncode: int | None = None
        self.result: bytes | None = None
        """Content of the file that it wrote its result to, once it has ended."""
        self._guest, self._number, self._channel = guest, number, channel
        self._reader = asyncio.StreamReader(limit=MAX_LINE)
        self._num_unread = 0
        errors, self._errors = os.pipe()
        self._forwarder = OutputForwarder(errors, launcher.budget, launcher.output_tail)
        os.set_blocking(self._errors, False)
        self._sending = asyncio.Queue[tuple[bytes, bytes]]()
        self._tasks = [asyncio.create_task(work) for work in (self._pump(), self._send())]
        self._ended = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.returncode is None

    @property
    def has_too_many_zombies(self) -> bool:
        """Whether it left too many: never, as the container's first process reaps them."""
        return False

    def write(self, data: bytes, last: bool = False) -> None:
        """Write to its standard input; close it after ``last``."""
        for start in range(0, len(data), CHUNK):
            self._sending.put_nowait((DATA, data[start : start + CHUNK]))
        if last:
            self._sending.put_nowait((wire.END, b""))

    async def readline(self) -> bytes:
        """Read the next line of standard output, empty at the end; raise OSError, or ValueError for a line too long."""
        return self._count(await self._reader.readline())

    async def read(self) -> bytes:
        """Read some of its standard output, nothing at the end; raise OSError."""
        return self._count(await self._reader.read(CHUNK))

    async def read_all(self) -> bytes:
        """Read its standard output to the end; raise ValueError beyond `MAX_LINE` bytes."""
        return await collect_output(self.read)

    async def wait(self) -> int:
        """Wait for its end; return its status. Raises `GuestLostError` where nobody knows it."""
        await self._ended.wait()
        if self.returncode == LOST_STATUS:
            await self._channel.ended
        return self.returncode or 0

    async def exit_reason(self) -> str:
        """Wait for its end; describe it in a sentence. Raises `GuestLostError`."""
        code = await self.wait()
        return self.kill_reason or self.limits.explain_exit(code)

    async def stop(self) -> None:
        """End it and all that was started in the container."""
        if not self._guest.is_lost:
            with contextlib.suppress(GuestLostError):
                await self._guest.kill()
        await cancel_and_wait(*self._tasks)
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1
            self._forwarder.close()

    def _count(self, data: bytes) -> bytes:
        self._num_unread -= len(data)
        return data

    async def _send(self) -> None:
        with contextlib.suppress(GuestLostError):
            while True:
                await self._guest.send(*self._order(await self._sending.get()))

    def _order(self, piece: tuple[bytes, bytes]) -> tuple[bytes, int, bytes]:
        return piece[0], self._number, piece[1]

    async def _pump(self) -> None:
        """Hand on what it prints until it ends."""
        ended, output = self._channel.ended, self._channel.output
        while not (ended.done() and output.empty()):
            async for kind, data in self._guest.output(self._channel):
                self._print(kind, data)
        self._guest.forget(self._number)
        try:
            self._finish(ended.result())
        except GuestLostError:
            self.returncode = LOST_STATUS
        self._reader.feed_eof()
        self._ended.set()

    def _print(self, kind: bytes, data: bytes) -> None:
        if kind == wire.ERRORS:
            with contextlib.suppress(OSError):  # beyond the pipe it is dropped, as it is beyond the budget
                os.write(self._errors, data)
        elif self._num_unread < 2 * MAX_LINE:
            self._num_unread += len(data)
            self._reader.feed_data(data)

    def _finish(self, end: dict[str, Any]) -> None:
        status = end.get("status")
        self.returncode = status if isinstance(status, int) else LOST_STATUS
        if end.get("out_of_memory") and self.returncode in KILLED and self.limits.memory_limit_gib is not None:
            self.kill_reason = self.limits.memory_sentence
        if isinstance(end.get("result"), str):
            self.result = base64.b64decode(end["result"])


@dataclass(frozen=True, slots=True)
class ContainerLauncher:
    """Starts an agent's programs in a container; see `lightningbus.runners.agent.launcher.Launcher`."""

    launcher: AgentLauncher
    """Environment, limits and budget of the agent."""
    guest: Callable[[], Guest]
    place: str
    """The directory that they run in."""
    environment: dict[str, str]
    paths: Mapping[str, str]
    """Paths inside by those on this machine, for words of commands."""
    listens: bool = True
    """Whether they reach the gateway."""
    wants_result: bool = False

    @property
    def directory(self) -> Path:
        """The directory of the agent's modules."""
        return self.launcher.directory

    @property
    def limits(self) -> ResourceLimits:
        """Limits of the agent."""
        return self.launcher.limits

    @property
    def output_tail(self) -> SlotOutput:
        """End of the agent's output."""
        return self.launcher.output_tail

    def check(self, program: str) -> None:
        """Do nothing: only the image knows its programs."""

    async def start(self, *command: str) -> ContainerProcess:
        """Start a program; raise `AgentStartError` if it cannot be, `GuestLostError` without its container."""
        launcher, guest = self.launcher, self.guest()
        host, _, port = launcher.paths.get("address", "").rpartition(":")
        slot = launcher.slot_env() if self.listens else {}
        order = {
            "command": [self.paths.get(word, word) for word in command],
            "directory": self.place,
            "environment": {"PYTHONUNBUFFERED": "1", **slot, **launcher.environment, **self.environment},
            "limits": launcher.limits.kernel_limits(),
            "listen": [host, int(port)] if self.listens and port else None,
            "wants_result": self.wants_result,
        }
        number, channel = await guest.start(order)
        if channel.ended.done() and (error := channel.ended.result().get("error")):
            guest.forget(number)
            raise AgentStartError(f"{shlex.join(command)[:200]} does not start in the container: {error}")
        return ContainerProcess(guest, number, channel, launcher)
