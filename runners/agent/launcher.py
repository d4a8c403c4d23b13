"""Where an agent's processes run: with which environment, in which directories, within which limits and sandbox."""

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

from common.subprocesses import set_child_subreaper, spawn
from runners.agent.limits import ResourceLimits
from runners.agent.output import OutputBudget, OutputForwarder
from runners.agent.process import AgentProcess, ProcessWatchdog, remove

QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "500", "PYTHONUNBUFFERED": "1"}
"""So that its spans and what it prints leave it soon."""


class AgentStartError(Exception):
    """The agent cannot be started as configured; no rollout could ever work."""


@dataclass(frozen=True, slots=True)
class AgentLauncher:
    """How an agent's processes are started; ``slot`` gives each new one its own variables."""

    directory: Path
    environment: dict[str, str]
    """What its operator has it find there, see `runners.agent.environment`."""
    slot_env: Callable[[], dict[str, str]]
    limits: ResourceLimits
    sandbox: Sequence[str]
    """Put in front of every command; ``{name}`` stands for one of ``paths``, ``{path}`` or ``{tmp}``."""
    paths: dict[str, str]
    keeper: ProcessWatchdog
    share: OutputBudget = field(default_factory=OutputBudget)

    def check(self, program: str) -> None:
        """Raises `AgentStartError` if there is no such program; a sandbox finds its own."""
        first = _filled([*self.sandbox, program][0], self.paths)
        if "/" in first:
            found_at, where = shutil.which(self.directory / first), str(self.directory)
        else:
            found_at, where = shutil.which(first, path=self.environment.get("PATH", os.defpath)), "PATH"
        if found_at is None:
            raise AgentStartError(f"{first} is no program in {where}")

    async def start(self, *command: str) -> AgentProcess:
        """A process that is written to and read from; raises `AgentStartError`."""
        with contextlib.ExitStack() as undo:
            try:
                scratch = Path(tempfile.mkdtemp(prefix="lightningbus-agent-"))
                undo.callback(remove, scratch)
                process, requests, replies, printed = await self._spawned(scratch, command, undo)
            except OSError as error:
                first = [*self.sandbox, *command][0]
                raise AgentStartError(f"{first} cannot be started in {self.directory}: {error}") from error
            undo.pop_all()
        inmate = AgentProcess(process, scratch, self.limits, OutputForwarder(printed, self.share))
        self.keeper.keep(inmate)
        try:
            await inmate.connect(requests, replies)
        except BaseException:  # cancelled before anybody holds it
            await inmate.stop()
            raise
        return inmate

    async def _spawned(
        self, scratch: Path, command: Sequence[str], undo: contextlib.ExitStack
    ) -> tuple[asyncio.subprocess.Process, socket.socket, socket.socket, int]:
        """A process, and our ends of its standard input, output and error, which ``undo`` closes."""
        paths = {**self.paths, "path": str(self.directory.absolute()), "tmp": str(scratch)}
        orphans, limits = set_child_subreaper(), self.limits

        def prepare() -> None:
            if orphans is not None:
                orphans()
            os.umask(0o077)
            limits.apply()

        # Not asyncio's own pipes: the end of a process would not be heard while anything it left holds one.
        with contextlib.ExitStack() as theirs:
            (requests, stdin), (replies, stdout) = _pair(undo, theirs), _pair(undo, theirs)
            printed, stderr = os.pipe()  # no socket, which could not be opened as /dev/stderr
            undo.callback(os.close, printed)
            theirs.callback(os.close, stderr)
            process = await spawn(
                *(_filled(word, paths) for word in self.sandbox),
                *command,
                cwd=self.directory,
                env={**QUICK, "TMPDIR": str(scratch), **self.slot_env(), **self.environment},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                parent_dies=signal.SIGKILL,
                prepare=prepare,
            )
        return process, requests, replies, printed


def _filled(word: str, paths: dict[str, str]) -> str:
    for name, path in paths.items():
        word = word.replace(f"{{{name}}}", path)
    return word


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    ours.callback(near.close)
    theirs.callback(far.close)
    return near, far
