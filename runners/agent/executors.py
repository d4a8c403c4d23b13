"""An agent in a process of its own: a warm Python host, or any program started once per rollout."""

import asyncio
import itertools
import json
import logging
from pathlib import Path
from typing import Any, Protocol, TypedDict

from lightningbus.common.observability.faults import MAX_TRACEBACK
from lightningbus.runners.agent.launcher import AgentStartError, Launcher
from lightningbus.runners.agent.process import RunningProcess
from lightningbus.runners.recording.attempt import MAX_ERROR, AttemptRecorder
from lightningbus.schemas.base import Mode
from lightningbus.schemas.text import shorten

log = logging.getLogger(__name__)

WORKER_SCRIPT = Path(__file__).with_name("worker") / "worker_script.py"
IMPORT_TIMEOUT_SECONDS = 120.0
"""Importing an agent's framework may take long; longer than this is a fault."""


class AgentError(Exception):
    """The agent failed by itself; the message is one sentence, ``detail`` its traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WorkerProcessDiedError(Exception):
    """A process shared by several rollouts is gone, or blocked by another one; the rollout is not to blame."""


class LoopBlockedError(Exception):
    """The rollout blocked the event loop of a process that it shares past its deadline; the message is a sentence."""


def parse_reply(line: bytes) -> dict[str, Any]:
    """Parse a line of the host script; raise `AgentError` if it is invalid, because the agent can write there too."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AgentError(f"the agent wrote into our connection: {line[:80]!r}")
    return answer


class RolloutInfo(TypedDict):
    """Facts about a rollout that agents of other frameworks expect."""

    id: str
    attempt: int
    mode: Mode
    model: str
    sampling_params: dict[str, Any]


class AgentExecutor(Protocol):
    """Runs one rollout at a time."""

    async def start(self) -> None:
        """Make ready, if it is not; raises `AgentStartError`."""

    async def prepare(self, task: Any, rollout_id: str = "") -> None:
        """Make ready for one task, before its time begins."""
        return

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one task; return ``{"value": ...}`` or raise `AgentError`. A cancellation kills the process."""

    def check_timeout(self) -> None:
        """Raise `WorkerProcessDiedError` if others kept the task from its deadline, `LoopBlockedError` if it kept them.

        Called after a deadline has cancelled `run`.
        """
        return

    async def grade(self, task: Any, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, with a ``"reward"`` where a reward function gives one."""
        return answer

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record what a rollout leaves, and remove it; called once a rollout has ended, however that was."""
        return

    async def stop(self) -> None:
        """End the process and all its descendants."""


class PythonExecutor(AgentExecutor):
    """``module:function`` in the user's interpreter, loaded once and kept warm between rollouts."""

    _mode = "exclusive"
    _kind = ""
    """Kind of the function in errors, beside its name."""

    def __init__(
        self,
        python: Path,
        function: str,
        launcher: Launcher,
        rollouts: int | None = None,
        modules: Path | None = None,
    ) -> None:
        """Prepare the executor; after ``rollouts`` rollouts its process is replaced by a fresh one.

        ``modules``: directory of the agent's modules, where that is not the one it runs in.
        """
        self._command = [str(python), str(WORKER_SCRIPT), self._mode, function]
        self._command += [str(modules.absolute())] if modules is not None else []
        self._target = f"{self._kind}{function}"
        self._launcher, self._rollouts = launcher, rollouts
        self._process: RunningProcess | None = None
        self._requests = itertools.count()
        self._rollouts_left = 0
        self.is_concurrent = False
        """Whether the function is async, as its process reports at start."""

    async def start(self) -> None:
        """Start the process, unless it runs, and wait until it has imported the agent."""
        if self._process is not None and self._process.is_running and not self._process.kill_reason:
            return
        await self.stop()
        self._process = await self._launcher.start(*self._command)
        self._rollouts_left = self._rollouts or 0
        try:
            async with asyncio.timeout(IMPORT_TIMEOUT_SECONDS):
                reply = await self._receive()
        except TimeoutError:
            await self.stop()
            raise AgentStartError(f"{self._target} was not imported within {IMPORT_TIMEOUT_SECONDS:g} s") from None
        except AgentError as error:
            await self.stop()
            raise AgentStartError(f"{self._target} cannot be loaded: {error}") from error
        if "error" in reply:
            log.error("%s", shorten(str(reply.get("traceback", "")), MAX_TRACEBACK))
            await self.stop()
            reason = shorten(str(reply["error"]), MAX_ERROR)
            raise AgentStartError(f"{self._target} cannot be loaded from {self._launcher.directory}: {reason}")
        self.is_concurrent = reply.get("concurrent") is True

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one rollout."""
        self._launcher.output_tail.clear()
        job = next(self._requests)
        try:
            self._send({"job": job, "arguments": [task], "rollout": rollout})
            answer = await self._receive()
            while answer.get("job") != job:  # from a process that the agent forked in an earlier rollout
                answer = await self._receive()
        except BaseException:  # cancelled at the deadline, or died: either way this process is no longer usable
            await self.stop()
            raise
        self._rollouts_left -= 1
        if limit := self._launcher.limits.explain_error(str(answer.get("error", ""))):
            answer["error"] = f"{answer['error']}; {limit}"
        has_too_many = self._process is not None and self._process.has_too_many_zombies
        if limit or has_too_many or self._rollouts_left == 0:  # its state must not reach the next rollout
            await self.stop()
        if "error" in answer:
            raise AgentError(str(answer["error"]), str(answer.get("traceback", "")))
        return answer

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record the end of what the agent printed."""
        recorder.output_tail = self._launcher.output_tail.take()

    async def stop(self) -> None:
        """End the process and all it started."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            self._process.write(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> dict[str, Any]:
        process = self._process
        if process is None:
            raise AgentError("the agent's process is gone")
        try:
            line = await process.readline()
        except (OSError, ValueError) as error:
            raise AgentError(f"the agent's answer cannot be read: {error}") from error
        if not line:
            raise AgentError(await process.exit_reason())
        return parse_reply(line)


class CommandExecutor(AgentExecutor):
    """Any program, started once per rollout: task JSON on its stdin, result JSON on its stdout."""

    def __init__(self, command: list[str], launcher: Launcher) -> None:
        self._command = command
        self._launcher = launcher
        self._process: RunningProcess | None = None

    async def start(self) -> None:
        """Check that the program exists; raise `AgentStartError`. There is no process to keep warm."""
        self._launcher.check(self._command[0])

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one process from start to end."""
        process = self._process = await self._launcher.start(*self._command)
        try:
            process.write(json.dumps(task).encode(), last=True)
            out = await process.read_all()
            how, code = await process.exit_reason(), await process.wait()
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

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record the end of what the program wrote to its standard error."""
        recorder.output_tail = self._launcher.output_tail.take()

    async def stop(self) -> None:
        """End the process and all it started."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
