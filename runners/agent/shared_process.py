"""Many rollouts side by side in one agent process: an async function that gets its model's endpoint per call."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.runners.agent.executors import (
    AgentError,
    AgentExecutor,
    LoopBlockedError,
    PythonExecutor,
    RolloutInfo,
    WorkerProcessDiedError,
)
from lightningbus.runners.agent.launcher import Launcher
from lightningbus.runners.agent.process import RunningProcess
from lightningbus.runners.agent.worker.loop_watch import BLOCKED_SECONDS
from lightningbus.runners.agent.worker.output_capture import MAX_TAIL_BYTES
from lightningbus.runners.recording.attempt import AttemptRecorder

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""Seconds that one rollout of many in a process has to end when it is cancelled."""
MAX_OUTPUT = MAX_TAIL_BYTES + 64
"""Characters of what a rollout printed, with a line that counts what is missing."""
MAX_LOST_ATTEMPTS = 2
"""Attempts that a rollout may lose to others in its process; the next one runs beside no other."""
ENDPOINT = {
    "base_url": "OPENAI_BASE_URL",
    "api_key": "OPENAI_API_KEY",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
"""Fields of the endpoint for an agent in a shared process, and the variables that carry them for other agents."""


@dataclass(eq=False)
class SharedCall:
    """A call in a process that others share."""

    answer: asyncio.Future[dict[str, Any] | Exception] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Its reply, or the reason why there will be none."""
    blocked_at: float | None = None
    """Time since which it blocks the others, by the monotonic clock; None: it does not."""
    timeout_fault: Exception | None = None
    """Error that says why a call that was cancelled did not end in time; None: it has no other reason."""
    output: str = ""
    """The end of what it printed; empty also where its process has ended."""

    def fail(self, error: Exception) -> None:
        """Let its caller get an error, unless it has an answer."""
        if not self.answer.done():
            self.answer.set_result(error)


class SharedExecutor(PythonExecutor):
    """An async ``module:function`` of (task, endpoint) that serves many slots side by side in one process."""

    _mode = "shared"

    def __init__(self, python: Path, function: str, launcher: Launcher) -> None:
        super().__init__(python, function, launcher)
        self._starting = asyncio.Lock()
        self._calls: dict[int, SharedCall] = {}
        """Calls that wait for their answer, by job."""
        self._listening: asyncio.Task[None] | None = None
        self._unblocked = asyncio.Event()

    async def start(self) -> None:
        """Start the process unless it runs, the first caller does; wait while a call blocks its event loop."""
        while True:
            async with self._starting:
                if self._process is None or not self._process.is_running:
                    await super().start()
                    self._listening = asyncio.create_task(self._listen(self._process))
            if self._find_blocker() is None:
                return
            self._unblocked.clear()
            await self._unblocked.wait()

    async def run_one(self, *arguments: Any, call: SharedCall | None = None, **more: Any) -> dict[str, Any]:
        """Make one call, see `AgentExecutor.run`; a cancelled one is asked to end.

        One that does not end then ends the process, unless another one blocks it. ``more`` goes into the job beside the
        arguments. Raises `WorkerProcessDiedError` when the process has ended, `LoopBlockedError` as `check_timeout`.
        """
        job, process = next(self._requests), self._process
        if process is None or not process.is_running:  # since `start`
            raise WorkerProcessDiedError("the agent's process is gone")
        call = self._calls[job] = call or SharedCall()
        try:
            self._send({"job": job, "arguments": arguments, **more})
            reply: dict[str, Any] | Exception = await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            self._send({"cancel": job})
            call.timeout_fault = self._find_fault(call)
            await asyncio.wait([call.answer], timeout=CANCEL_SECONDS)
            call.timeout_fault = self._find_fault(call) or call.timeout_fault
            is_blocked_by_other = isinstance(call.timeout_fault, WorkerProcessDiedError)
            if not call.answer.done() and not is_blocked_by_other and self._process is process:
                await self.stop()  # it does not listen: the others of this process come to nothing too
            raise
        finally:
            del self._calls[job]
            self._unblocked.set()
            if call.answer.done() and isinstance(ended := call.answer.result(), dict):
                call.output = str(ended.pop("output", ""))[-MAX_OUTPUT:]
        if isinstance(reply, Exception):
            raise reply
        if "error" in reply:
            raise AgentError(str(reply["error"]), str(reply.get("traceback", "")))
        return reply

    async def stop(self) -> None:
        """End the process group; callers that wait for an answer get an error."""
        self._fail_all("the agent's process was ended")
        await super().stop()

    def _find_blocker(self) -> SharedCall | None:
        return next((call for call in self._calls.values() if call.blocked_at is not None), None)

    def _find_fault(self, call: SharedCall) -> Exception | None:
        """Return the error of a call that does not end in time, or of one whose process ended; None: there is none."""
        if call.answer.done():
            ended = call.answer.result()
            return ended if isinstance(ended, Exception) else None
        blocker = self._find_blocker()
        if blocker is None or blocker.blocked_at is None:
            return None
        seconds = time.monotonic() - blocker.blocked_at
        if blocker is not call:
            return WorkerProcessDiedError(f"the event loop of the agent's process was blocked for {seconds:.0f} s")
        return LoopBlockedError(
            f"it blocked the event loop of its process for {seconds:.0f} s; use async calls, or "
            "max_concurrent_per_process: 1"
        )

    async def _listen(self, process: RunningProcess | None) -> None:
        try:
            while self._process is process:
                reply = await self._receive()
                if "blocking" in reply:
                    self._set_blocker(reply["blocking"])
                    continue
                job = reply.get("job")
                call = self._calls.get(job) if isinstance(job, int) else None
                if call is not None and not call.answer.done():
                    call.answer.set_result(reply)
        except AgentError as fault:
            if self._process is process:  # we did not end it
                log.warning("%s", fault)
            if self._process in (None, process):  # otherwise of a process whose rollouts have failed already
                self._fail_all(str(fault))

    def _set_blocker(self, job: Any) -> None:
        """Note which call blocks the process as its worker reports; it notices that after a while."""
        for number, call in self._calls.items():
            call.blocked_at = time.monotonic() - BLOCKED_SECONDS if number == job else None
        self._unblocked.set()

    def _fail_all(self, reason: str) -> None:
        for call in self._calls.values():
            call.fail(WorkerProcessDiedError(reason))
            call.blocked_at = None
        self._unblocked.set()


class SharedSlotExecutor(AgentExecutor):
    """One slot's part of a `SharedAgent`."""

    def __init__(self, agent: "SharedAgent", slot: Callable[[], dict[str, str]]) -> None:
        self._agent, self._slot = agent, slot
        self._executor = agent.shared
        self._call: SharedCall | None = None
        self._rollout_id, self._num_lost = "", 0

    async def start(self) -> None:
        """Start the process that all slots share."""
        await self._agent.shared.start()

    async def prepare(self, task: Any, rollout_id: str = "") -> None:
        """Wait for a process of its own where others have ended that of the rollout again and again."""
        self._rollout_id, self._num_lost = rollout_id, self._agent.lost_attempts.pop(rollout_id, 0)
        if self._num_lost >= MAX_LOST_ATTEMPTS:
            await self._agent.alone_lock.acquire()
            self._executor = self._agent.alone
            await self._executor.start()

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one rollout with its own key."""
        slot, self._call = self._slot(), SharedCall()
        endpoint = {name: slot[variable] for name, variable in ENDPOINT.items()}
        try:
            return await self._executor.run_one(task, call=self._call, endpoint=endpoint)
        except WorkerProcessDiedError as error:
            raise self._count_lost(error) from None

    def check_timeout(self) -> None:
        """Raise what is known about the rollout that a deadline cancelled."""
        fault = self._call.timeout_fault if self._call is not None else None
        if isinstance(fault, WorkerProcessDiedError):
            raise self._count_lost(fault)
        if fault is not None:
            raise fault

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record the end of what the rollout printed."""
        call, self._call = self._call, None
        recorder.output_tail = call.output if call is not None else ""
        if self._executor is self._agent.alone:
            self._executor = self._agent.shared
            self._agent.alone_lock.release()

    async def stop(self) -> None:
        """End the processes, of the others too."""
        await self._agent.shared.stop()
        await self._agent.alone.stop()

    def _count_lost(self, error: WorkerProcessDiedError) -> WorkerProcessDiedError:
        if self._executor is self._agent.alone:
            return error
        self._agent.lost_attempts[self._rollout_id] = self._num_lost + 1
        return WorkerProcessDiedError(f"{error}; other rollouts shared it")


class SharedAgent:
    """The processes of some slots: one that all share, and one for a rollout that others ended too often."""

    def __init__(self, make: Callable[[], SharedExecutor]) -> None:
        self.shared, self.alone = make(), make()
        self.alone_lock = asyncio.Lock()
        """Held by the rollout in the process ``alone``."""
        self.lost_attempts: dict[str, int] = {}
        """Attempts that others ended, by rollout that is to be retried."""
