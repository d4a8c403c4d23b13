"""Processes of one function that grades: each takes one rollout at a time, and is replaced when it hangs or ends."""

import asyncio
import json
import math
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.graders.errors import GraderError, UnusableGradeError
from lightningbus.graders.submission import Submission
from lightningbus.schemas.semconv.rewards import is_usable

WORKER_SCRIPT = Path(__file__).with_name("worker_script.py")
START_SECONDS = 120.0
"""Importing a function may take long; longer than this is a fault."""


class FunctionPool:
    """Calls ``module:function`` in other processes."""

    def __init__(
        self, name: str, path: str, python: Path | None, working_dir: Path, num_processes: int, timeout_seconds: float
    ) -> None:
        self._name, self._path, self._timeout_seconds = name, path, timeout_seconds
        self._python, self._working_dir = str(python or sys.executable), working_dir
        self._idle: asyncio.LifoQueue[Process | None] = asyncio.LifoQueue()
        self._num_processes = num_processes
        self._running: set[Process] = set()
        self.takes_rollout = True
        """Whether the function asks for the rollout beside its input and result."""

    async def start(self) -> None:
        """Start one process, to see that the function loads; raise `GraderError` if it does not."""
        for _ in range(self._num_processes - 1):
            self._idle.put_nowait(None)
        self._idle.put_nowait(await self._start_one())

    async def stop(self) -> None:
        """End all processes."""
        for process in list(self._running):
            await self._end(process)

    async def grade(self, submission: Submission) -> float:
        """Return the function's reward for a submission; raise `UnusableGradeError`."""
        process = await self._idle.get()
        try:
            if process is None or process.returncode is not None:
                process = await self._start_one()
            reply = await self._call(process, submission)
        except BaseException:
            if process is not None:
                await self._end(process)
            process = None
            raise
        finally:
            self._idle.put_nowait(process)
        return read_reward(self._path, reply)

    async def _call(self, process: Process, submission: Submission) -> Any:
        assert process.stdin is not None and process.stdout is not None
        arguments = [submission.input, submission.result, submission.describe()]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                process.stdin.write(json.dumps(arguments).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise UnusableGradeError(f"{self._path} did not end in {self._timeout_seconds:g} s") from None
        except OSError:
            line = b""
        if not line:
            raise UnusableGradeError(f"{self._path} ended its process")
        return json.loads(line)

    async def _start_one(self) -> Process:
        process = await spawn(
            self._python, str(WORKER_SCRIPT), self._path,
            stdin=PIPE, stdout=PIPE, stderr=None if sys.stderr is not None else DEVNULL, cwd=self._working_dir,
        )  # fmt: skip
        self._running.add(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except BaseException as error:
            await self._end(process)
            if not isinstance(error, TimeoutError):
                raise
            raise GraderError(f"graders.{self._name}: {self._path} was not loaded in {START_SECONDS:g} s") from None
        loaded = json.loads(line) if line else {"error": "its process ended"}
        if problem := loaded.get("error"):
            await self._end(process)
            where = f"graders.{self._name}: {self._path} cannot be loaded in {self._working_dir.resolve()}"
            raise GraderError(f"{where}: {problem}")
        self.takes_rollout = bool(loaded["takes_rollout"])
        return process

    async def _end(self, process: Process) -> None:
        self._running.discard(process)
        await kill_group(process)


def read_reward(path: str, reply: Any) -> float:
    """Read a function's reply; raise `UnusableGradeError` unless it is a usable number. Pure."""
    if "error" in reply:
        raise UnusableGradeError(f"{path} failed: {reply['error']}")
    value = reply["value"]
    if not isinstance(value, float) or not math.isfinite(value) or not is_usable(value):
        raise UnusableGradeError(f"{path} gave {value}, which is not a reward: return a finite number")
    return value
