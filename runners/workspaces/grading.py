"""Grading in a workspace: hidden files are copied in, and a command says what the agent's work is worth."""

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.runners.agent.launcher import AgentLauncher, AgentStartError
from lightningbus.runners.agent.process import RunningProcess
from lightningbus.runners.agent.reward_function import RewardTimeoutError
from lightningbus.runners.recording.rewards import InvalidRewardError, parse_named_rewards, parse_rewards
from lightningbus.runners.workspaces.errors import WorkspaceFailedError
from lightningbus.runners.workspaces.providers import MAX_RESULT_BYTES, Workspace
from lightningbus.runners.workspaces.specification import GradeSpec

PASSED = "tests_passed"
PATCH_COMMAND = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH_SECONDS = 60.0
MAX_TAIL_BYTES = 4096
NOT_STARTED = (126, 127)
"""Statuses of a shell for a program that it cannot start."""
MERGED_OUTPUT = ["/bin/sh", "-c", 'exec "$@" 2>&1', "grader"]


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program in a workspace: its status, the last of its output, and the result that it wrote."""

    status: int
    tail: str
    result: bytes | None

    def describe(self) -> str:
        """Describe it in some words."""
        return f"status {self.status}: {(self.tail.strip().splitlines() or ['nothing printed'])[-1][:300]}"


async def apply_patch(workspace: Workspace, launcher: AgentLauncher, patch: str) -> bool:
    """Apply the diff that an agent returned to its workspace; return whether that worked."""
    ended = await run_program(
        workspace, launcher, PATCH_COMMAND, PATCH_SECONDS, "git apply", patch.encode(errors="replace")
    )
    if ended.status in NOT_STARTED:
        raise WorkspaceFailedError(f"git, which applies an agent's patch, cannot be started: {ended.describe()}")
    return ended.status == 0


async def grade(
    workspace: Workspace, launcher: AgentLauncher, spec: GradeSpec, files: Path | None, max_seconds: float
) -> dict[str, float]:
    """Run the grader; return the rewards by name.

    Raises `RewardTimeoutError` beyond its limit, and `WorkspaceFailedError` where it could not run or say a result.
    """
    try:
        await workspace.copy_in(files)
    except OSError as error:
        raise WorkspaceFailedError(f"the grader's files cannot be copied in: {error}") from error
    seconds = min(spec.timeout_seconds, max_seconds)
    ended = await run_program(workspace, launcher, [*MERGED_OUTPUT, *spec.command], seconds, "the grader", over=files)
    return judge(spec, ended)


def judge(spec: GradeSpec, ended: ProgramEnd) -> dict[str, float]:
    """Turn a grader's end and the result it wrote into rewards by name; raise `WorkspaceFailedError`. Pure."""
    if ended.result is None:
        if ended.status in NOT_STARTED:
            raise WorkspaceFailedError(f"the grader cannot be started: {ended.describe()}")
        if ended.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise WorkspaceFailedError(f"the grader was killed: {ended.describe()}")
        if spec.needs_result:
            raise WorkspaceFailedError(f"the grader wrote no result: {ended.describe()}")
        return {PASSED: float(ended.status == 0)}
    try:
        value: Any = json.loads(ended.result if len(ended.result) <= MAX_RESULT_BYTES else b"too long")
        if isinstance(value, Mapping):
            return parse_named_rewards(value)
        return {PASSED: parse_rewards({"reward": value}).reward}
    except (ValueError, RecursionError, InvalidRewardError) as error:
        raise WorkspaceFailedError(f"the grader's result is none: {error}; it is a number or numbers by name") from None


async def run_program(
    workspace: Workspace,
    launcher: AgentLauncher,
    command: Sequence[str],
    seconds: float,
    name: str,
    stdin: bytes = b"",
    over: Path | None = None,
) -> ProgramEnd:
    """Run a program in a workspace to its end, and end all that it started; raise as `grade`."""
    try:
        program = await workspace.run(launcher, command, over)
    except AgentStartError as error:
        raise WorkspaceFailedError(f"{name} cannot be started: {error}") from error
    process = program.process
    try:
        async with asyncio.timeout(seconds):
            process.write(stdin, last=True)
            tail = await _read_tail(process)
            status = await process.wait()
    except TimeoutError:
        raise RewardTimeoutError(f"{name} did not end in {seconds:g} s") from None
    except OSError as error:
        raise WorkspaceFailedError(f"what {name} prints cannot be read: {error}") from error
    finally:
        await process.stop()
    if not program.has_started():
        raise WorkspaceFailedError(f"{name} was not started by its sandbox (status {status})")
    if process.kill_reason:
        raise WorkspaceFailedError(f"{name} was ended: {process.kill_reason}")
    return ProgramEnd(status, tail.decode(errors="replace"), await program.read_result())


async def _read_tail(process: RunningProcess) -> bytes:
    """Read what a program prints to the end, and keep the last of it."""
    tail = b""
    while data := await process.read():
        tail = (tail + data)[-MAX_TAIL_BYTES:]
    return tail
