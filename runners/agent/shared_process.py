"""Many rollouts side by side in one agent process: an async function that gets its model's endpoint per call."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.runners.agent.executors import (
    AgentError,
    AgentExecutor,
    PythonExecutor,
    RolloutInfo,
    WorkerProcessDiedError,
)
from lightningbus.runners.agent.launcher import Launcher
from lightningbus.runners.agent.process import RunningProcess
from lightningbus.runners.agent.worker.output_capture import MAX_TAIL_BYTES
from lightningbus.runners.recording.attempt import AttemptRecorder

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""Seconds that one rollout of many in a process has to end when it is cancelled."""
MAX_OUTPUT = MAX_TAIL_BYTES + 64
"""Characters of what a rollout printed, with a line that counts what is missing."""
ENDPOINT = {
    "base_url": "OPENAI_BASE_URL",
    "api_key": "OPENAI_API_KEY",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
}
"""Fields of the endpoint for an agent in a shared process, and the variables that carry them for other agents."""


class SharedExecutor(PythonExecutor):
    """An async ``module:function`` of (task, endpoint) that serves many slots side by side in one process."""

    _mode = "shared"

    def __init__(self, python: Path, function: str, launcher: Launcher) -> None:
        super().__init__(python, function, launcher)
        self._starting = asyncio.Lock()
        self._replies: dict[int, asyncio.Future[dict[str, Any] | str]] = {}
        """Awaited replies by job; a string is the reason why there will be none."""
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process unless it runs; the first caller does."""
        async with self._starting:
            if self._process is None or not self._process.is_running:
                await super().start()
                self._listening = asyncio.create_task(self._listen(self._process))

    async def run_one(
        self, *arguments: Any, on_output: Callable[[str], None] = lambda text: None, **more: Any
    ) -> dict[str, Any]:
        """Make one call, see `AgentExecutor.run`; a cancelled one is asked to end, else the process is killed.

        ``on_output`` gets the end of what the call printed, however it ended, unless its process did. ``more`` goes
        into the job beside the arguments. Raises `WorkerProcessDiedError` when the process has ended.
        """
        job = next(self._requests)
        answer = self._replies[job] = asyncio.get_running_loop().create_future()
        try:
            self._send({"job": job, "arguments": arguments, **more})
            reply: dict[str, Any] | str = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._send({"cancel": job})
            await asyncio.wait([answer], timeout=CANCEL_SECONDS)
            if not answer.done():  # it does not listen: the others of this process come to nothing too
                await self.stop()
            raise
        finally:
            self._replies.pop(job, None)
            if answer.done() and isinstance(ended := answer.result(), dict):
                on_output(str(ended.pop("output", ""))[-MAX_OUTPUT:])
        if isinstance(reply, str):
            raise WorkerProcessDiedError(reply)
        if "error" in reply:
            raise AgentError(str(reply["error"]), str(reply.get("traceback", "")))
        return reply

    async def stop(self) -> None:
        """End the process group; callers that wait for an answer get an error."""
        await super().stop()
        self._fail_all("the agent's process was ended")

    async def _listen(self, process: RunningProcess | None) -> None:
        try:
            while self._process is process:
                reply = await self._receive()
                job = reply.get("job")
                answer = self._replies.get(job) if isinstance(job, int) else None
                if answer is not None and not answer.done():
                    answer.set_result(reply)
        except AgentError as fault:
            if self._process is process:  # we did not end it
                log.warning("%s", fault)
            if self._process in (None, process):  # otherwise of a process whose rollouts have failed already
                self._fail_all(str(fault))

    def _fail_all(self, reason: str) -> None:
        for answer in self._replies.values():
            if not answer.done():
                answer.set_result(reason)


class SharedSlotExecutor(AgentExecutor):
    """One slot's part of a `SharedExecutor`."""

    def __init__(self, shared: SharedExecutor, slot: Callable[[], dict[str, str]]) -> None:
        self._shared, self._slot = shared, slot
        self._output = ""

    async def start(self) -> None:
        """Start the process that all slots share."""
        await self._shared.start()

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one rollout with its own key."""
        slot, self._output = self._slot(), ""
        endpoint = {name: slot[variable] for name, variable in ENDPOINT.items()}
        try:
            return await self._shared.run_one(task, on_output=self._keep_output, endpoint=endpoint)
        except WorkerProcessDiedError as error:
            raise WorkerProcessDiedError(f"{error}; other rollouts shared it") from None

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record the end of what the rollout printed."""
        recorder.output_tail, self._output = self._output, ""

    def _keep_output(self, text: str) -> None:
        self._output = text

    async def stop(self) -> None:
        """End the process, of the others too."""
        await self._shared.stop()
