"""Start of an agent's processes: environment, directories, limits and sandbox."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightningbus.common.processes.subprocesses import set_child_subreaper, spawn
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.output import OutputBudget, OutputForwarder, SlotOutput
from lightningbus.runners.agent.process import AgentProcess, ProcessWatchdog, RunningProcess, remove_directory

DEFAULT_ENVIRONMENT = {"OTEL_BSP_SCHEDULE_DELAY": "500", "PYTHONUNBUFFERED": "1"}
"""Makes an agent send its spans and its output soon."""


class AgentStartError(Exception):
    """The agent cannot be started as configured; no rollout could ever work."""


class Launcher(Protocol):
    """Starts an agent's programs: as processes of this machine, or in a container."""

    @property
    def directory(self) -> Path:
        """The directory of the agent."""

    @property
    def limits(self) -> ResourceLimits:
        """Limits of each program."""

    @property
    def output_tail(self) -> SlotOutput:
        """End of the programs' output."""

    def check(self, program: str) -> None:
        """Raise `AgentStartError` if it is known that a program does not exist."""

    async def start(self, *command: str) -> RunningProcess:
        """Start a program with connected standard streams; raise `AgentStartError`."""


@dataclass(frozen=True, slots=True)
class AgentLauncher:
    """Starts an agent's processes; ``slot_env`` gives each new one the variables of its slot."""

    directory: Path
    environment: dict[str, str]
    """Variables from the operator; see `lightningbus.runners.agent.environment`."""
    slot_env: Callable[[], dict[str, str]]
    limits: ResourceLimits
    sandbox_command: Sequence[str]
    """Words put in front of every command; ``{name}`` is replaced by one of ``paths``, ``{path}`` or ``{tmp}``."""
    paths: dict[str, str]
    watchdog: ProcessWatchdog
    budget: OutputBudget = field(default_factory=OutputBudget)
    output_tail: SlotOutput = field(default_factory=SlotOutput)

    def check(self, program: str) -> None:
        """Raise `AgentStartError` if the program does not exist; a sandbox resolves its own."""
        first = _expand_placeholders([*self.sandbox_command, program][0], self.paths)
        if "/" in first:
            found_at, searched = shutil.which(self.directory / first), str(self.directory)
        else:
            found_at, searched = shutil.which(first, path=self.environment.get("PATH", os.defpath)), "PATH"
        if found_at is None:
            raise AgentStartError(f"{first} is no program in {searched}")

    async def start(self, *command: str) -> AgentProcess:
        """Start a process with connected standard streams; raise `AgentStartError`."""
        with contextlib.ExitStack() as undo:
            try:
                scratch = Path(tempfile.mkdtemp(prefix="lightningbus-agent-"))
                undo.callback(remove_directory, scratch)
                subprocess, requests, replies, output = await self._spawn(scratch, command, undo)
            except OSError as error:
                first = [*self.sandbox_command, *command][0]
                raise AgentStartError(f"{first} cannot be started in {self.directory}: {error}") from error
            undo.pop_all()
        process = AgentProcess(subprocess, scratch, self.limits, OutputForwarder(output, self.budget, self.output_tail))
        self.watchdog.watch(process)
        try:
            await process.connect(requests, replies)
        except BaseException:  # cancelled before anybody holds it
            await process.stop()
            raise
        return process

    async def _spawn(
        self, scratch: Path, command: Sequence[str], undo: contextlib.ExitStack
    ) -> tuple[asyncio.subprocess.Process, socket.socket, socket.socket, int]:
        """Spawn a process; return it with our ends of its standard input, output and error, which ``undo`` closes."""
        paths = {"path": str(self.directory.absolute()), **self.paths, "tmp": str(scratch)}
        orphans, limits = set_child_subreaper(), self.limits

        def prepare() -> None:
            if orphans is not None:
                orphans()
            os.umask(0o077)
            limits.apply()

        # Not asyncio's own pipes: the end of a process would not be heard while anything it left holds one.
        with contextlib.ExitStack() as theirs:
            (requests, stdin), (replies, stdout) = _pair(undo, theirs), _pair(undo, theirs)
            output, stderr = os.pipe()  # no socket, which could not be opened as /dev/stderr
            undo.callback(os.close, output)
            theirs.callback(os.close, stderr)
            process = await spawn(
                *(_expand_placeholders(word, paths) for word in self.sandbox_command),
                *command,
                cwd=self.directory,
                env={**DEFAULT_ENVIRONMENT, "TMPDIR": str(scratch), **self.slot_env(), **self.environment},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pdeathsig=signal.SIGKILL,
                prepare=prepare,
            )
        return process, requests, replies, output


def _expand_placeholders(word: str, paths: dict[str, str]) -> str:
    for name, path in paths.items():
        word = word.replace(f"{{{name}}}", path)
    return word


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    ours.callback(near.close)
    theirs.callback(far.close)
    return near, far
