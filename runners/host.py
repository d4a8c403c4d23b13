"""An agent in a process of its own: a warm Python host, or any program started once per rollout."""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bus.children import kill_group, spawn
from runners.settings import RunnerSettings

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("host_script.py")
START_SECONDS = 120.0
"""Importing an agent's framework may take long; longer than this is a fault."""
MAX_LINE = 64 * 1024 * 1024
OUR_VARIABLES = "LIGHTNINGBUS_"
"""Settings of ours, the bus's address and password among them, are not the agent's business."""


class AgentFault(Exception):
    """The agent failed by itself; the message is one sentence, ``detail`` its traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class CannotStart(Exception):
    """The agent cannot be started as configured; no rollout could ever work."""


class Host(Protocol):
    """Runs one rollout at a time."""

    async def start(self) -> None:
        """Make ready, if it is not; raises `CannotStart`."""

    async def run(self, task: Any) -> dict[str, Any]:
        """``{"value": ..., "reward": ...}`` of one task; raises `AgentFault`. Cancelled: the process is killed."""

    async def stop(self) -> None:
        """End the process and whatever it started."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and with what an agent's processes run; ``slot`` gives each new process its own variables."""

    directory: Path
    extra: dict[str, str]
    slot: Callable[[], dict[str, str]]
    data_bytes: int | None = None
    """Most memory one process may take."""

    def environment(self) -> dict[str, str]:
        """The user's environment without our variables, what the slot adds, and the settings' own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "500", "PYTHONUNBUFFERED": "1"}
        return {**kept, **quick, **self.slot(), **self.extra}


class PythonHost:
    """``module:function`` in the user's interpreter, loaded once and kept warm between rollouts."""

    def __init__(self, python: Path, agent: str, reward: str | None, place: Place) -> None:
        self._command = [str(python), str(SCRIPT)]
        self._targets = [agent, *([reward] if reward else [])]
        self._place = place
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._jobs = itertools.count()

    async def start(self) -> None:
        """Start the process, unless it runs, and wait until it has imported the agent."""
        if self._process is not None and self._process.returncode is None:
            return
        await self.stop()
        ours, theirs = socket.socketpair()
        try:
            self._process = await spawn(
                *self._command,
                str(theirs.fileno()),
                *self._targets,
                cwd=self._place.directory,
                env=self._place.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=[theirs.fileno()],
                parent_dies=signal.SIGKILL,
                data_bytes=self._place.data_bytes,
            )
        except OSError as error:
            ours.close()
            raise CannotStart(f"{self._command[0]} cannot be started in {self._place.directory}: {error}") from error
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        try:
            async with asyncio.timeout(START_SECONDS):
                said = await self._hear()
        except TimeoutError:
            await self.stop()
            raise CannotStart(f"{self._targets[0]} was not imported within {START_SECONDS:g} s") from None
        except AgentFault as error:
            await self.stop()
            raise CannotStart(f"{self._targets[0]} cannot be loaded: {error}") from error
        if "error" in said:
            log.error("%s", said.get("traceback", ""))
            await self.stop()
            raise CannotStart(f"{self._targets[0]} cannot be loaded from {self._place.directory}: {said['error']}")

    async def run(self, task: Any) -> dict[str, Any]:
        """One rollout."""
        job = next(self._jobs)
        try:
            self._writer.write(json.dumps({"job": job, "input": task}).encode() + b"\n")
            answer = await self._hear()
            while answer.get("job") != job:  # of a process the agent forked, for a rollout that is over
                answer = await self._hear()
        except BaseException:  # cancelled at the deadline, or died: either way this process is no longer usable
            await self.stop()
            raise
        if "error" in answer:
            raise AgentFault(str(answer["error"]), str(answer.get("traceback", "")))
        return answer

    async def stop(self) -> None:
        """End the process group."""
        process, self._process = self._process, None
        if process is not None:
            self._writer.close()
            await kill_group(process)

    async def _hear(self) -> dict[str, Any]:
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            raise AgentFault(f"the agent's answer cannot be read: {error}") from error
        if not line:
            code = await self._process.wait() if self._process else None
            raise AgentFault(f"the agent's process ended with {code}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise AgentFault(f"the agent wrote into our connection: {line[:80]!r}")
        return answer


class CommandHost:
    """Any program, started once per rollout: task JSON on its stdin, result JSON on its stdout."""

    def __init__(self, command: list[str], place: Place) -> None:
        self._command = command
        self._place = place
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Nothing to keep warm."""

    async def run(self, task: Any) -> dict[str, Any]:
        """One process from start to end."""
        try:
            self._process = await spawn(
                *self._command,
                cwd=self._place.directory,
                env=self._place.environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                parent_dies=signal.SIGKILL,
                data_bytes=self._place.data_bytes,
                limit=MAX_LINE,
            )
        except OSError as error:
            raise CannotStart(f"{self._command[0]} cannot be started in {self._place.directory}: {error}") from error
        try:
            out, _ = await self._process.communicate(json.dumps(task).encode())
            code = self._process.returncode
        finally:
            await self.stop()
        if code:
            raise AgentFault(f"the agent's process ended with {code}")
        try:
            return {"value": json.loads(out)}
        except ValueError:
            raise AgentFault(f"the agent printed no JSON result: {out[:200].decode(errors='replace')!r}") from None

    async def stop(self) -> None:
        """End the process group."""
        process, self._process = self._process, None
        if process is not None:
            await kill_group(process)


def make_host(settings: RunnerSettings, slot: Callable[[], dict[str, str]]) -> Host:
    """The host the settings ask for; ``slot`` is called for each process it starts."""
    limit = None if settings.memory_gb is None else int(settings.memory_gb * 2**30)
    place = Place(settings.path, settings.env, slot, limit)
    if settings.command is not None:
        return CommandHost(settings.command, place)
    return PythonHost(settings.python or Path(sys.executable), settings.agent or "", settings.reward, place)
