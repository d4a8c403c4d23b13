"""Interface of providers of workspaces: a place for each rollout, where its programs run and its files are."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightningbus.runners.agent.launcher import AgentLauncher, Launcher
from lightningbus.runners.agent.process import RunningProcess
from lightningbus.runners.workspaces.files.changes import Change
from lightningbus.runners.workspaces.specification import WorkspaceSpec

VARIABLE, RESULT_VARIABLE = "WORKSPACE", "RESULT_FILE"
INSIDE, INSIDE_HOME, INSIDE_GRADE = "/workspace", "/home/agent", "/grade"
"""Directories as programs in a sandbox or container see them: the same for all rollouts, and so in all prompts."""
MAX_RESULT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs in a workspace, and is not the agent."""

    process: RunningProcess
    has_started: Callable[[], bool]
    """Whether it was started; False where its sandbox failed first."""
    read_result: Callable[[], Awaitable[bytes | None]]
    """Read the file that it wrote its result to, once it has ended; None without one."""


class Workspace(Protocol):
    """A place for one rollout, with files of its own."""

    @property
    def folder(self) -> Path:
        """Directory of this machine for what belongs to it."""

    @property
    def method(self) -> str:
        """Method by which its files were copied."""

    def agent_launcher(self, launcher: AgentLauncher) -> Launcher:
        """Return a launcher that starts the agent in here, with all that ``launcher`` says beside."""

    def has_started_agent(self) -> bool:
        """Return whether the agent was started; False where its sandbox failed first."""

    async def find_agents_fault(self) -> str:
        """Return a sentence if the agent has made an end of its workspace; else nothing."""

    async def run(self, launcher: AgentLauncher, command: Sequence[str], over: Path | None = None) -> Program:
        """Start a program in here that reaches no network; raise `AgentStartError`.

        ``over``: directory whose files lie over those of the workspace, as by `copy_in`.
        """

    async def copy_out(self) -> list[Change]:
        """List the files that the agent changed, with what they are now; its programs have ended."""

    async def copy_in(self, files: Path | None) -> None:
        """Make ready for a grader: copy its files over those that are there, before a program is run ``over`` them."""

    async def destroy(self) -> None:
        """Remove all; its programs have ended."""


class Provider(Protocol):
    """Makes workspaces."""

    async def open(self) -> str:
        """Make ready; return a sentence about what it is. Raises `WorkspaceFailedError`."""

    async def create(self, folder: Path, base: Path, spec: WorkspaceSpec) -> Workspace:
        """Make a workspace from the files of ``base``; ``folder`` is its own, and not there yet.

        Raises `WorkspaceFailedError`, and `WorkspaceRefusedError` for what it can never make.
        """

    async def read_image(self, spec: WorkspaceSpec, target: Path) -> None:
        """Copy the files that a workspace's image has to ``target``; raises as `create`."""

    def trial_command(self) -> Sequence[str]:
        """Return a command that ends with 0 in a workspace if all is as it should be."""

    async def close(self) -> None:
        """Let go of all; its workspaces are destroyed."""
