"""An agent in a process of its own: a warm Python host, or any program started once per rollout."""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bus.children import kill_group, spawn
from bus.tracing import environment_of_others
from runners.settings import RunnerSettings

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("host_script.py")
START_SECONDS = 120.0
"""Importing an agent's framework may take long; longer than this is a fault."""
MAX_LINE = 64 * 1024 * 1024
CANCEL_SECONDS = 2.0
"""How long one rollout of many in a process gets to end when it is cancelled."""
ENDPOINT = {
    "base_url": "OPENAI_BASE_URL",
    "api_key": "OPENAI_API_KEY",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
"""What an agent that shares its process is told per rollout, and the variable that says it to any other."""
OUR_VARIABLES = "LIGHTNINGBUS_"
"""Settings of ours, the bus's address and password among them, are not the agent's business."""


class AgentFault(Exception):
    """The agent failed by itself; the message is one sentence, ``detail`` its traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ProcessLost(Exception):
    """The process that several rollouts shared is gone; which of them did it cannot be told."""


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
        others = environment_of_others(os.environ)  # where this runner's own traces go is not the agent's business
        kept = {name: value for name, value in others.items() if not name.startswith(OUR_VARIABLES)}
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "500", "PYTHONUNBUFFERED": "1"}
        return {**kept, **quick, **self.slot(), **self.extra}


class PythonHost:
    """``module:function`` in the user's interpreter, loaded once and kept warm between rollouts."""

    _mode = "one"

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
                self._mode,
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


class SharedHost(PythonHost):
    """An async ``module:function`` of (task, endpoint) that serves many slots side by side in one process."""

    _mode = "many"

    def __init__(self, python: Path, agent: str, reward: str | None, place: Place) -> None:
        super().__init__(python, agent, reward, place)
        self._starting = asyncio.Lock()
        self._answers: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
        """By job; None: there will be no answer."""
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, unless it runs; whoever comes first does."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await super().start()
                self._listening = asyncio.create_task(self._listen())

    async def serve(self, task: Any, endpoint: dict[str, str]) -> dict[str, Any]:
        """One rollout, see `Host.run`; cancelled, it is asked to end, and the process is ended if it does not.

        Raises `ProcessLost` when that, or an end of its own, took the process away.
        """
        job = next(self._jobs)
        answer = self._answers[job] = asyncio.get_running_loop().create_future()
        try:
            self._say({"job": job, "input": task, "endpoint": endpoint})
            said: dict[str, Any] | None = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._say({"cancel": job})
            await asyncio.wait([answer], timeout=CANCEL_SECONDS)
            if not answer.done():  # it does not listen: the others of this process come to nothing too
                await self.stop()
            raise
        finally:
            self._answers.pop(job, None)
        if said is None:
            raise ProcessLost("the agent's process, which other rollouts shared, is gone")
        if "error" in said:
            raise AgentFault(str(said["error"]), str(said.get("traceback", "")))
        return said

    async def stop(self) -> None:
        """End the process group; whoever waits for an answer hears so."""
        await super().stop()
        self._lost()

    def _say(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self) -> None:
        try:
            while True:
                said = await self._hear()
                answer = self._answers.get(int(said.get("job", -1)))
                if answer is not None and not answer.done():
                    answer.set_result(said)
        except AgentFault as fault:
            log.warning("%s", fault)
            self._lost()

    def _lost(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)


class SharedSlot:
    """One slot's part of a `SharedHost`."""

    def __init__(self, shared: SharedHost, slot: Callable[[], dict[str, str]]) -> None:
        self._shared, self._slot = shared, slot

    async def start(self) -> None:
        """The process of all of them."""
        await self._shared.start()

    async def run(self, task: Any) -> dict[str, Any]:
        """One rollout, with a key of its own."""
        given = self._slot()
        return await self._shared.serve(task, {name: given[variable] for name, variable in ENDPOINT.items()})

    async def stop(self) -> None:
        """End the process, of the others too."""
        await self._shared.stop()


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


def _found_from_here(program: Path) -> Path:
    """As whoever wrote the path means it, not as its process would, which starts elsewhere; a link stays one."""
    return program.absolute() if len(program.parts) > 1 else program


def make_hosts(settings: RunnerSettings, slots: Sequence[Callable[[], dict[str, str]]]) -> list[Host]:
    """A host for each slot, as the settings ask for; a slot is called for each process that is started for it."""
    limit = None if settings.memory_gb is None else int(settings.memory_gb * 2**30)
    places = [Place(settings.path, settings.env, slot, limit) for slot in slots]
    if settings.command is not None:
        return [CommandHost(settings.command, place) for place in places]
    python, agent = _found_from_here(settings.python or Path(sys.executable)), settings.agent or ""
    if settings.per_process == 1:
        return [PythonHost(python, agent, settings.reward, place) for place in places]
    nobody = Place(settings.path, settings.env, dict, limit)
    shared = [SharedHost(python, agent, settings.reward, nobody) for _ in range(0, len(slots), settings.per_process)]
    return [SharedSlot(shared[number // settings.per_process], slot) for number, slot in enumerate(slots)]
