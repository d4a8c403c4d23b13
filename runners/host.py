"""An agent in a process of its own: a warm Python host, or any program started once per rollout."""

import asyncio
import itertools
import json
import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from runners.limits import Limits
from runners.place import CannotStart, Inmate, Keeper, Place
from runners.settings import RunnerSettings

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("host_script.py")
START_SECONDS = 120.0
"""Importing an agent's framework may take long; longer than this is a fault."""
CANCEL_SECONDS = 2.0
"""How long one rollout of many in a process gets to end when it is cancelled."""
ENDPOINT = {
    "base_url": "OPENAI_BASE_URL",
    "api_key": "OPENAI_API_KEY",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
"""What an agent that shares its process is told per rollout, and the variable that says it to any other."""


class AgentFault(Exception):
    """The agent failed by itself; the message is one sentence, ``detail`` its traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ProcessLost(Exception):
    """The process that several rollouts shared is gone; which of them did it cannot be told."""


def answer_of(line: bytes) -> dict[str, Any]:
    """A line of the host script's; raises `AgentFault` when it is none, for the agent can write there too."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AgentFault(f"the agent wrote into our connection: {line[:80]!r}")
    return answer


class Host(Protocol):
    """Runs one rollout at a time."""

    async def start(self) -> None:
        """Make ready, if it is not; raises `CannotStart`."""

    async def run(self, task: Any) -> dict[str, Any]:
        """``{"value": ..., "reward": ...}`` of one task; raises `AgentFault`. Cancelled: the process is killed."""

    async def stop(self) -> None:
        """End the process and whatever it started."""


class PythonHost:
    """``module:function`` in the user's interpreter, loaded once and kept warm between rollouts."""

    _mode = "one"

    def __init__(self, python: Path, agent: str, reward: str | None, place: Place, rollouts: int | None = None) -> None:
        """``rollouts``: after so many the process gives way to a fresh one."""
        self._command = [str(python), str(SCRIPT), self._mode, agent, *([reward] if reward else [])]
        self._target = agent
        self._place, self._rollouts = place, rollouts
        self._inmate: Inmate | None = None
        self._jobs = itertools.count()
        self._left = 0

    async def start(self) -> None:
        """Start the process, unless it runs, and wait until it has imported the agent."""
        if self._inmate is not None and self._inmate.runs and not self._inmate.why:
            return
        await self.stop()
        self._inmate = await self._place.start(*self._command)
        self._left = self._rollouts or 0
        try:
            async with asyncio.timeout(START_SECONDS):
                said = await self._hear()
        except TimeoutError:
            await self.stop()
            raise CannotStart(f"{self._target} was not imported within {START_SECONDS:g} s") from None
        except AgentFault as error:
            await self.stop()
            raise CannotStart(f"{self._target} cannot be loaded: {error}") from error
        if "error" in said:
            log.error("%s", said.get("traceback", ""))
            await self.stop()
            raise CannotStart(f"{self._target} cannot be loaded from {self._place.directory}: {said['error']}")

    async def run(self, task: Any) -> dict[str, Any]:
        """One rollout."""
        job = next(self._jobs)
        try:
            self._say({"job": job, "input": task})
            answer = await self._hear()
            while answer.get("job") != job:  # of a process the agent forked, for a rollout that is over
                answer = await self._hear()
        except BaseException:  # cancelled at the deadline, or died: either way this process is no longer usable
            await self.stop()
            raise
        self._left -= 1
        if met := self._place.limits.met(str(answer.get("error", ""))):
            answer["error"] = f"{answer['error']}; {met}"
        crowded = self._inmate is not None and self._inmate.crowded
        if met or crowded or self._left == 0:  # what it took, or did, is not the next rollout's
            await self.stop()
        if "error" in answer:
            raise AgentFault(str(answer["error"]), str(answer.get("traceback", "")))
        return answer

    async def stop(self) -> None:
        """End the process and all it started."""
        inmate, self._inmate = self._inmate, None
        if inmate is not None:
            await inmate.stop()

    def _say(self, message: dict[str, Any]) -> None:
        if self._inmate is not None:
            self._inmate.say(json.dumps(message).encode() + b"\n")

    async def _hear(self) -> dict[str, Any]:
        inmate = self._inmate
        if inmate is None:
            raise AgentFault("the agent's process is gone")
        try:
            line = await inmate.line()
        except (OSError, ValueError) as error:
            raise AgentFault(f"the agent's answer cannot be read: {error}") from error
        if not line:
            raise AgentFault(await inmate.ended())
        return answer_of(line)


class SharedHost(PythonHost):
    """An async ``module:function`` of (task, endpoint) that serves many slots side by side in one process."""

    _mode = "many"

    def __init__(self, python: Path, agent: str, reward: str | None, place: Place) -> None:
        super().__init__(python, agent, reward, place)
        self._starting = asyncio.Lock()
        self._answers: dict[int, asyncio.Future[dict[str, Any] | str]] = {}
        """By job; a string says why there will be no answer."""
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, unless it runs; whoever comes first does."""
        async with self._starting:
            if self._inmate is None or not self._inmate.runs:
                await super().start()
                self._listening = asyncio.create_task(self._listen(self._inmate))

    async def serve(self, task: Any, endpoint: dict[str, str]) -> dict[str, Any]:
        """One rollout, see `Host.run`; cancelled, it is asked to end, and the process is ended if it does not.

        Raises `ProcessLost` when that, or an end of its own, took the process away.
        """
        job = next(self._jobs)
        answer = self._answers[job] = asyncio.get_running_loop().create_future()
        try:
            self._say({"job": job, "input": task, "endpoint": endpoint})
            said: dict[str, Any] | str = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._say({"cancel": job})
            await asyncio.wait([answer], timeout=CANCEL_SECONDS)
            if not answer.done():  # it does not listen: the others of this process come to nothing too
                await self.stop()
            raise
        finally:
            self._answers.pop(job, None)
        if isinstance(said, str):
            raise ProcessLost(f"{said}; other rollouts shared it")
        if "error" in said:
            raise AgentFault(str(said["error"]), str(said.get("traceback", "")))
        return said

    async def stop(self) -> None:
        """End the process group; whoever waits for an answer hears so."""
        await super().stop()
        self._lost("the agent's process was ended")

    async def _listen(self, inmate: Inmate | None) -> None:
        try:
            while self._inmate is inmate:
                said = await self._hear()
                job = said.get("job")
                answer = self._answers.get(job) if isinstance(job, int) else None
                if answer is not None and not answer.done():
                    answer.set_result(said)
        except AgentFault as fault:
            log.warning("%s", fault)
            if self._inmate in (None, inmate):  # else it is of a process whose rollouts know already
                self._lost(str(fault))

    def _lost(self, why: str) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(why)


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
        self._inmate: Inmate | None = None

    async def start(self) -> None:
        """Nothing to keep warm."""

    async def run(self, task: Any) -> dict[str, Any]:
        """One process from start to end."""
        inmate = self._inmate = await self._place.start(*self._command)
        try:
            inmate.say(json.dumps(task).encode(), last=True)
            out = await inmate.everything()
            how, code = await inmate.ended(), inmate.process.returncode
        except (OSError, ValueError) as error:
            raise AgentFault(f"what the agent prints cannot be read: {error}") from error
        finally:
            await self.stop()
        if code:
            raise AgentFault(how)
        try:
            return {"value": json.loads(out)}
        except (ValueError, RecursionError):
            raise AgentFault(f"the agent printed no JSON result: {out[:200].decode(errors='replace')!r}") from None

    async def stop(self) -> None:
        """End the process and all it started."""
        inmate, self._inmate = self._inmate, None
        if inmate is not None:
            await inmate.stop()


def _found_from_here(program: Path) -> Path:
    """As whoever wrote the path means it, not as its process would, which starts elsewhere; a link stays one."""
    return program.absolute() if len(program.parts) > 1 else program


def paths_of(python: Path) -> dict[str, str]:
    """What a sandbox has to let in: our script, the interpreter's environment, and the installation that is made of."""
    found = Path(shutil.which(python) or sys.executable)
    venv, base = found.parents[1], found.resolve().parents[1]
    if not (venv / "pyvenv.cfg").exists():  # an interpreter that stands anywhere, perhaps in somebody's home
        venv = base
    return {"host": str(SCRIPT), "venv": str(venv), "base": str(base)}


def make_hosts(settings: RunnerSettings, slots: Sequence[Callable[[], dict[str, str]]], keeper: Keeper) -> list[Host]:
    """A host for each slot, as the settings ask for; a slot is called for each process that is started for it."""
    python, agent = _found_from_here(settings.python or Path(sys.executable)), settings.agent or ""
    limits, paths = Limits.of(settings), paths_of(python)

    def place(slot: Callable[[], dict[str, str]]) -> Place:
        return Place(settings.path, settings.env, slot, limits, settings.sandbox, paths, keeper)

    if settings.command is not None:
        return [CommandHost(settings.command, place(slot)) for slot in slots]
    if settings.per_process == 1:
        fresh = settings.rollouts_per_process
        return [PythonHost(python, agent, settings.reward, place(slot), fresh) for slot in slots]
    groups = range(0, len(slots), settings.per_process)
    shared = [SharedHost(python, agent, settings.reward, place(dict)) for _ in groups]
    return [SharedSlot(shared[number // settings.per_process], slot) for number, slot in enumerate(slots)]
