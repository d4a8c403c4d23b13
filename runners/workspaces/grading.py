"""Grading in a workspace: hidden files are copied in, and a command says what the agent's work is worth."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.runners.agent.launcher import AgentLauncher, AgentStartError
from lightningbus.runners.agent.process import AgentProcess
from lightningbus.runners.agent.reward_function import RewardTimeoutError
from lightningbus.runners.recording.rewards import InvalidRewardError, parse_named_rewards, parse_rewards
from lightningbus.runners.workspaces.errors import WorkspaceFailedError
from lightningbus.runners.workspaces.providers import RESULT, Workspace
from lightningbus.runners.workspaces.specification import GradeSpec

PASSED = "tests_passed"
PATCH_COMMAND = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH_SECONDS = 60.0
MAX_RESULT_BYTES = 1024 * 1024
MAX_TAIL_BYTES = 4096
NOT_STARTED = (126, 127)
"""Statuses of a shell for a program that it cannot start."""
MERGED_OUTPUT = ["/bin/sh", "-c", 'exec "$@" 2>&1', "grader"]


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program in a workspace ended: its status, and the last of what it printed."""

    status: int
    tail: str

    def describe(self) -> str:
        """Describe it in some words."""
        return f"status {self.status}: {(self.tail.strip().splitlines() or ['nothing printed'])[-1][:300]}"


async def apply_patch(workspace: Workspace, launcher: AgentLauncher, patch: str) -> bool:
    """Apply the diff that an agent returned to its workspace; return whether that worked."""
    ended = await run_program(
        workspace, launcher, PATCH_COMMAND, PATCH_SECONDS, "git apply", patch.encode(errors="replace")
    )
    return ended.status == 0


async def grade(
    workspace: Workspace, launcher: AgentLauncher, spec: GradeSpec, files: Path | None, max_seconds: float
) -> dict[str, float]:
    """Run the grader; return the rewards by name.

    Raises `RewardTimeoutError` beyond its limit, and `WorkspaceFailedError` where it could not run or say a result.
    """
    if files is not None:
        try:
            await asyncio.to_thread(workspace.copy_in, files)
        except OSError as error:
            raise WorkspaceFailedError(f"the grader's files cannot be copied in: {error}") from error
    seconds = min(spec.timeout_seconds, max_seconds)
    ended = await run_program(workspace, launcher, [*MERGED_OUTPUT, *spec.command], seconds, "the grader", over=files)
    return judge(spec, ended, _read_result(workspace.copy.grade / RESULT))


def judge(spec: GradeSpec, ended: ProgramEnd, result: bytes | None) -> dict[str, float]:
    """Turn a grader's end and the result it wrote into rewards by name; raise `WorkspaceFailedError`. Pure."""
    if result is None:
        if ended.status in NOT_STARTED:
            raise WorkspaceFailedError(f"the grader cannot be started: {ended.describe()}")
        if ended.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise WorkspaceFailedError(f"the grader was killed: {ended.describe()}")
        if spec.needs_result:
            raise WorkspaceFailedError(f"the grader wrote no result: {ended.describe()}")
        return {PASSED: float(ended.status == 0)}
    try:
        value: Any = json.loads(result)
        if isinstance(value, Mapping):
            return parse_named_rewards(value)
        return {PASSED: parse_rewards({"reward": value}).reward}
    except (ValueError, RecursionError, InvalidRewardError) as error:
        raise WorkspaceFailedError(f"the grader's result is none: {error}; it is a number or numbers by name") from None


async def run_program(
    workspace: Workspace,
    launcher: AgentLauncher,
    command: list[str],
    seconds: float,
    name: str,
    stdin: bytes = b"",
    over: Path | None = None,
) -> ProgramEnd:
    """Run a program in a workspace to its end, and end all that it started; raise as `grade`."""
    try:
        process, started = await workspace.run(launcher, command, over)
    except AgentStartError as error:
        raise WorkspaceFailedError(f"{name} cannot be started: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            process.write(stdin, last=True)
            tail = await _read_tail(process)
            status = await process.process.wait()
    except TimeoutError:
        raise RewardTimeoutError(f"{name} did not end in {seconds:g} s") from None
    except OSError as error:
        raise WorkspaceFailedError(f"what {name} prints cannot be read: {error}") from error
    finally:
        await process.stop()
    if not started.exists():
        raise WorkspaceFailedError(f"{name} was not started by its sandbox (status {status})")
    if process.kill_reason:
        raise WorkspaceFailedError(f"{name} was ended: {process.kill_reason}")
    return ProgramEnd(status, tail.decode(errors="replace"))


async def _read_tail(process: AgentProcess) -> bytes:
    """Read what a program prints to the end, and keep the last of it."""
    tail = b""
    while data := await process.read():
        tail = (tail + data)[-MAX_TAIL_BYTES:]
    return tail


def _read_result(path: Path) -> bytes | None:
    """Read a result; None without one. What is no plain file, or too large, is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            data = file.read(MAX_RESULT_BYTES + 1)
        except OSError:
            return None
    return data if len(data) <= MAX_RESULT_BYTES else b"too long"
