"""An agent in a process of its own: a warm Python host, or any program started once per rollout."""

import asyncio
import itertools
import json
import logging
from pathlib import Path
from typing import Any, Protocol

from common.observability.faults import MAX_TRACEBACK
from runners.agent.launcher import AgentLauncher, AgentStartError
from runners.agent.process import AgentProcess
from runners.recording.attempt import MAX_ERROR
from schemas.text import shorten

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("worker_script.py")
IMPORT_TIMEOUT_SECONDS = 120.0
"""Importing an agent's framework may take long; longer than this is a fault."""


class AgentError(Exception):
    """The agent failed by itself; the message is one sentence, ``detail`` its traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WorkerProcessDied(Exception):
    """The process that several rollouts shared is gone; which of them did it cannot be told."""


def parse_reply(line: bytes) -> dict[str, Any]:
    """A line of the host script's; raises `AgentError` when it is none, for the agent can write there too."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AgentError(f"the agent wrote into our connection: {line[:80]!r}")
    return answer


class AgentExecutor(Protocol):
    """Runs one rollout at a time."""

    async def start(self) -> None:
        """Make ready, if it is not; raises `AgentStartError`."""

    async def run(self, task: Any) -> dict[str, Any]:
        """``{"value": ..., "reward": ...}`` of one task; raises `AgentError`. Cancelled: the process is killed."""

    async def stop(self) -> None:
        """End the process and whatever it started."""


class PythonExecutor:
    """``module:function`` in the user's interpreter, loaded once and kept warm between rollouts."""

    _mode = "one"
    _kind = ""
    """What the function is called in errors, beside its name."""

    def __init__(self, python: Path, function: str, place: AgentLauncher, rollouts: int | None = None) -> None:
        """``rollouts``: after so many the process gives way to a fresh one."""
        self._command = [str(python), str(SCRIPT), self._mode, function]
        self._target = f"{self._kind}{function}"
        self._place, self._rollouts = place, rollouts
        self._inmate: AgentProcess | None = None
        self._jobs = itertools.count()
        self._left = 0

    async def start(self) -> None:
        """Start the process, unless it runs, and wait until it has imported the agent."""
        if self._inmate is not None and self._inmate.is_running and not self._inmate.kill_reason:
            return
        await self.stop()
        self._inmate = await self._place.start(*self._command)
        self._left = self._rollouts or 0
        try:
            async with asyncio.timeout(IMPORT_TIMEOUT_SECONDS):
                reply = await self._hear()
        except TimeoutError:
            await self.stop()
            raise AgentStartError(f"{self._target} was not imported within {IMPORT_TIMEOUT_SECONDS:g} s") from None
        except AgentError as error:
            await self.stop()
            raise AgentStartError(f"{self._target} cannot be loaded: {error}") from error
        if "error" in reply:
            log.error("%s", shorten(str(reply.get("traceback", "")), MAX_TRACEBACK))
            await self.stop()
            why = shorten(str(reply["error"]), MAX_ERROR)
            raise AgentStartError(f"{self._target} cannot be loaded from {self._place.directory}: {why}")

    async def run(self, task: Any) -> dict[str, Any]:
        """One rollout."""
        job = next(self._jobs)
        try:
            self._say({"job": job, "arguments": [task]})
            answer = await self._hear()
            while answer.get("job") != job:  # of a process the agent forked, for a rollout that is over
                answer = await self._hear()
        except BaseException:  # cancelled at the deadline, or died: either way this process is no longer usable
            await self.stop()
            raise
        self._left -= 1
        if met := self._place.limits.met(str(answer.get("error", ""))):
            answer["error"] = f"{answer['error']}; {met}"
        crowded = self._inmate is not None and self._inmate.has_too_many_zombies
        if met or crowded or self._left == 0:  # what it took, or did, is not the next rollout's
            await self.stop()
        if "error" in answer:
            raise AgentError(str(answer["error"]), str(answer.get("traceback", "")))
        return answer

    async def stop(self) -> None:
        """End the process and all it started."""
        inmate, self._inmate = self._inmate, None
        if inmate is not None:
            await inmate.stop()

    def _say(self, message: dict[str, Any]) -> None:
        if self._inmate is not None:
            self._inmate.write(json.dumps(message).encode() + b"\n")

    async def _hear(self) -> dict[str, Any]:
        inmate = self._inmate
        if inmate is None:
            raise AgentError("the agent's process is gone")
        try:
            line = await inmate.readline()
        except (OSError, ValueError) as error:
            raise AgentError(f"the agent's answer cannot be read: {error}") from error
        if not line:
            raise AgentError(await inmate.exit_reason())
        return parse_reply(line)


class CommandExecutor:
    """Any program, started once per rollout: task JSON on its stdin, result JSON on its stdout."""

    def __init__(self, command: list[str], place: AgentLauncher) -> None:
        self._command = command
        self._place = place
        self._inmate: AgentProcess | None = None

    async def start(self) -> None:
        """Nothing to keep warm; raises `AgentStartError` when there is no such program."""
        self._place.check(self._command[0])

    async def run(self, task: Any) -> dict[str, Any]:
        """One process from start to end."""
        inmate = self._inmate = await self._place.start(*self._command)
        try:
            inmate.write(json.dumps(task).encode(), last=True)
            out = await inmate.read_all()
            how, code = await inmate.exit_reason(), inmate.process.returncode
        except (OSError, ValueError) as error:
            raise AgentError(f"what the agent prints cannot be read: {error}") from error
        finally:
            await self.stop()
        if code:
            raise AgentError(how)
        try:
            return {"value": json.loads(out)}
        except (ValueError, RecursionError):
            raise AgentError(f"the agent printed no JSON result: {out[:200].decode(errors='replace')!r}") from None

    async def stop(self) -> None:
        """End the process and all it started."""
        inmate, self._inmate = self._inmate, None
        if inmate is not None:
            await inmate.stop()
