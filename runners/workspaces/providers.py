"""Providers of workspaces: where a rollout's programs run, and what they can reach."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lightningbus.runners.agent.launcher import AgentLauncher
from lightningbus.runners.agent.process import AgentProcess, remove_directory
from lightningbus.runners.workspaces.files.copies import CopyMethod, WorkspaceCopy
from lightningbus.runners.workspaces.files.overlaid import copy_over

MARK_STARTED = ["/bin/sh", "-c", ': > "$0" && exec "$@"']
"""Words before a program that tell its own failure from that of its sandbox: a file is there once it starts."""
STARTED = "started"
VARIABLE, RESULT_VARIABLE = "WORKSPACE", "RESULT_FILE"
RESULT = "result.json"
INSIDE, INSIDE_HOME, INSIDE_GRADE = "/workspace", "/home/agent", "/grade"
"""Directories as programs in bubblewrap see them: the same for all rollouts, and so in all prompts."""


class Workspace(Protocol):
    """A place for one rollout, with files of its own."""

    @property
    def copy(self) -> WorkspaceCopy:
        """Its directories."""

    def agent_launcher(self, launcher: AgentLauncher) -> AgentLauncher:
        """Return a launcher that starts the agent in here, with all that ``launcher`` says beside."""

    async def run(
        self, launcher: AgentLauncher, command: Sequence[str], over: Path | None = None
    ) -> tuple[AgentProcess, Path]:
        """Start a program in here that reaches no network; return it, and the file that is there once it started.

        ``over``: directory whose files lie over those of the workspace, as by `copy_in`.
        """

    def copy_in(self, files: Path) -> None:
        """Copy files over those that are there, before a program is run ``over`` them."""

    def destroy(self) -> None:
        """Remove all files; its programs have ended."""


@dataclass(frozen=True, slots=True)
class ProcessProvider:
    """Programs run as processes of this machine's user; nothing keeps them in their workspace."""

    method: CopyMethod
    sandbox_command: Sequence[str] = ()
    """Words of the operator's own sandbox; ``{workspace}`` is the workspace's directory, ``{home}`` the one beside."""

    def create(self, folder: Path, base: Path) -> "LocalWorkspace":
        """Make a workspace in ``folder`` from the files of ``base``; raise `WorkspaceFailedError`."""
        copy = WorkspaceCopy(folder, base, self.method)
        try:
            copy.make()
        except BaseException:
            if folder.exists():
                remove_directory(folder)
            raise
        return LocalWorkspace(copy, self)

    def agent_words(self) -> list[str]:
        """Build the words before the agent's command."""
        return list(self.sandbox_command)

    def program_words(self) -> list[str]:
        """Build the words before a program that is not the agent."""
        return []

    def places(self, copy: WorkspaceCopy) -> tuple[str, str, str]:
        """Return the workspace, the agent's home and the grader's home, as programs see them."""
        return str(copy.work), str(copy.home), str(copy.grade)


@dataclass(frozen=True, slots=True)
class BubblewrapProvider(ProcessProvider):
    """Programs run in a sandbox without privileges: they see their workspace and programs, and reach the gateway."""

    hidden: Sequence[Path] = ()
    """Directories that are empty inside, also where a directory that holds them is visible."""
    binds: Sequence[Path] = ()
    """Further directories that are visible inside, and cannot be written."""

    def agent_words(self) -> list[str]:
        """Build the words of bubblewrap for the agent; the relay forwards its calls to the gateway's socket."""
        visible = ["{base}", "{venv}", "{path}", "{worker}", "{relay}", "{gateway}", *map(str, self.binds)]
        hidden = [word for path in self.hidden if path.is_dir() for word in ("--tmpfs", str(path.resolve()))]
        return [
            *self._words(visible, hidden),
            *("--bind", "{tmp}", "{tmp}", "--bind", "{workspace}", INSIDE, "--bind", "{home}", INSIDE_HOME),
            *("--chdir", INSIDE, "{python}", "-I", "{relay}", "{gateway}", "{address}"),
        ]

    def program_words(self) -> list[str]:
        """Build the words of bubblewrap for a grader, which has no gateway."""
        return [
            *self._words(["{base}", "{venv}", *map(str, self.binds)], []),
            *("--bind", "{tmp}", "{tmp}", "--bind", "{workspace}", INSIDE, "--bind", "{grade}", INSIDE_GRADE),
            *("--chdir", INSIDE),
        ]

    def places(self, copy: WorkspaceCopy) -> tuple[str, str, str]:
        """Return the fixed places inside."""
        return INSIDE, INSIDE_HOME, INSIDE_GRADE

    def _words(self, visible: Sequence[str], hidden: Sequence[str]) -> list[str]:
        words = ["bwrap", "--die-with-parent", "--unshare-all", "--new-session"]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in ("/usr", "/etc", "/bin", "/lib"):
            words += ["--ro-bind", path, path]
        words += ["--ro-bind-try", "/lib64", "/lib64"]
        for path in visible:
            words += ["--ro-bind", path, path]
        return [*words, *hidden]


@dataclass(frozen=True, slots=True)
class LocalWorkspace:
    """A workspace in a directory of this machine."""

    copy: WorkspaceCopy
    provider: ProcessProvider

    def agent_launcher(self, launcher: AgentLauncher) -> AgentLauncher:
        """See `Workspace`."""
        place, home, _ = self.provider.places(self.copy)
        return self._launcher(launcher, self.provider.agent_words(), {VARIABLE: place, "HOME": home}, home, None)

    async def run(
        self, launcher: AgentLauncher, command: Sequence[str], over: Path | None = None
    ) -> tuple[AgentProcess, Path]:
        """See `Workspace`."""
        place, _, home = self.provider.places(self.copy)
        variables = {VARIABLE: place, "HOME": home, RESULT_VARIABLE: f"{home}/{RESULT}"}
        words = self.provider.program_words()
        await asyncio.to_thread(remove_directory, self.copy.grade)  # an agent may have written a result there
        self.copy.grade.mkdir()
        process = await self._launcher(replace(launcher, slot_env=dict), words, variables, home, over).start(*command)
        return process, self.copy.grade / STARTED

    def copy_in(self, files: Path) -> None:
        """See `Workspace`; an overlay has them as a layer instead, and so nothing is written through a link."""
        if self.copy.method != "overlay":
            copy_over(files, self.copy.work)

    def destroy(self) -> None:
        """See `Workspace`."""
        remove_directory(self.copy.folder)

    def _launcher(
        self, launcher: AgentLauncher, words: list[str], variables: Mapping[str, str], home: str, over: Path | None
    ) -> AgentLauncher:
        copy = self.copy
        paths = {**launcher.paths, "workspace": str(copy.work), "home": str(copy.home), "grade": str(copy.grade)}
        return replace(
            launcher,
            directory=copy.work,
            environment={**launcher.environment, **variables},
            sandbox_command=[*copy.mount_words(over), *words, *MARK_STARTED, f"{home}/{STARTED}"],
            paths={**paths, "path": str(launcher.directory.absolute())},
        )
