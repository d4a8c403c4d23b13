"""Workspaces on this machine: programs run as processes, bare or in bubblewrap."""

import asyncio
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lightningbus.runners.agent.launcher import AgentLauncher
from lightningbus.runners.agent.process import remove_directory
from lightningbus.runners.workspaces.errors import WorkspaceRefusedError
from lightningbus.runners.workspaces.files.changes import Change, find_changes
from lightningbus.runners.workspaces.files.copies import CopyMethod, WorkspaceCopy
from lightningbus.runners.workspaces.files.overlaid import copy_over
from lightningbus.runners.workspaces.providers import (
    INSIDE,
    INSIDE_GRADE,
    INSIDE_HOME,
    MAX_RESULT_BYTES,
    RESULT_VARIABLE,
    VARIABLE,
    Program,
)
from lightningbus.runners.workspaces.specification import WorkspaceSpec

MARK_STARTED = ["/bin/sh", "-c", ': > "$0" && exec "$@"']
"""Words before a program that tell its own failure from that of its sandbox: a file is there once it starts."""
BUBBLEWRAP_SCRIPT = Path(__file__).with_name("bubblewrap_script.py")
EVERYBODY = stat.S_IROTH | stat.S_IXOTH
"""Rights of a directory that everybody may look into."""
STARTED, RESULT = "started", "result.json"
NO_IMAGES = "the task's workspace names an image: workspace.provider of the runner has to be docker or kubernetes"


@dataclass(frozen=True, slots=True)
class ProcessProvider:
    """Programs run as processes of this machine's user; nothing keeps them in their workspace."""

    method: CopyMethod
    sandbox_command: Sequence[str] = ()
    """Words of the operator's own sandbox; ``{workspace}`` is the workspace's directory, ``{home}`` the one beside."""

    async def open(self) -> str:
        """See `Provider`."""
        return f"workspaces are made by {self.method}"

    async def close(self) -> None:
        """See `Provider`."""

    def trial_command(self) -> Sequence[str]:
        """See `Provider`."""
        return ["/bin/true"]

    async def read_image(self, spec: WorkspaceSpec, target: Path) -> None:
        """See `Provider`."""
        raise WorkspaceRefusedError(NO_IMAGES)

    async def create(self, folder: Path, base: Path, spec: WorkspaceSpec) -> "LocalWorkspace":
        """See `Provider`."""
        if spec.image:
            raise WorkspaceRefusedError(NO_IMAGES)
        return await asyncio.to_thread(self._create, folder, base)

    def _create(self, folder: Path, base: Path) -> "LocalWorkspace":
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
            *("--chdir", INSIDE, "--", "{python}", "-I", "{relay}", "{gateway}", "{address}"),
        ]

    def program_words(self) -> list[str]:
        """Build the words of bubblewrap for a grader, which has no gateway."""
        return [
            *self._words(["{base}", "{venv}", *map(str, self.binds)], []),
            *("--bind", "{tmp}", "{tmp}", "--bind", "{workspace}", INSIDE, "--bind", "{grade}", INSIDE_GRADE),
            *("--chdir", INSIDE, "--"),
        ]

    def places(self, copy: WorkspaceCopy) -> tuple[str, str, str]:
        """Return the fixed places inside."""
        return INSIDE, INSIDE_HOME, INSIDE_GRADE

    def _words(self, visible: Sequence[str], hidden: Sequence[str]) -> list[str]:
        words = [
            sys.executable,
            "-I",
            "-S",
            str(BUBBLEWRAP_SCRIPT),
            "--die-with-parent",
            "--unshare-all",
            "--new-session",
        ]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in ("/usr", "/etc", "/bin", "/lib"):
            words += ["--ro-bind", path, path]
        words += ["--ro-bind-try", "/lib64", "/lib64"]
        for path in visible:
            words += ["--ro-bind", path, path]
        return [*words, *hide_private(Path("/etc")), *hidden]


def hide_private(directory: Path) -> list[str]:
    """Build the words that hide what not everybody may read: a sandbox of root is root to the files of the machine."""
    words: list[str] = []
    for path in sorted(directory.iterdir()):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                words += hide_private(path) if mode & EVERYBODY == EVERYBODY else ("--tmpfs", str(path))
            elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                words += ("--ro-bind", os.devnull, str(path))
    return words


@dataclass(frozen=True, slots=True)
class LocalWorkspace:
    """A workspace in a directory of this machine."""

    copy: WorkspaceCopy
    provider: ProcessProvider

    @property
    def folder(self) -> Path:
        """See `Workspace`."""
        return self.copy.folder

    @property
    def method(self) -> str:
        """See `Workspace`."""
        return self.copy.method

    def has_started_agent(self) -> bool:
        """See `Workspace`."""
        return (self.copy.home / STARTED).exists()

    async def find_agents_fault(self) -> str:
        """See `Workspace`."""
        return ""

    def agent_launcher(self, launcher: AgentLauncher) -> AgentLauncher:
        """See `Workspace`."""
        place, home, _ = self.provider.places(self.copy)
        return self._launcher(launcher, self.provider.agent_words(), {VARIABLE: place, "HOME": home}, home, None)

    async def run(self, launcher: AgentLauncher, command: Sequence[str], over: Path | None = None) -> Program:
        """See `Workspace`."""
        place, _, home = self.provider.places(self.copy)
        variables = {VARIABLE: place, "HOME": home, RESULT_VARIABLE: f"{home}/{RESULT}"}
        words = self.provider.program_words()
        await asyncio.to_thread(remove_directory, self.copy.grade)  # an agent may have written a result there
        self.copy.grade.mkdir()
        process = await self._launcher(replace(launcher, slot_env=dict), words, variables, home, over).start(*command)

        async def read_result() -> bytes | None:
            return await asyncio.to_thread(_read, self.copy.grade / RESULT)

        return Program(process, (self.copy.grade / STARTED).exists, read_result)

    async def copy_out(self) -> list[Change]:
        """See `Workspace`."""
        return await asyncio.to_thread(find_changes, self.copy)

    async def copy_in(self, files: Path | None) -> None:
        """See `Workspace`; an overlay has them as a layer instead, and so nothing is written through a link."""
        if files is not None and self.copy.method != "overlay":
            await asyncio.to_thread(copy_over, files, self.copy.work)

    async def destroy(self) -> None:
        """See `Workspace`."""
        await asyncio.to_thread(remove_directory, self.copy.folder)

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


def _read(path: Path) -> bytes | None:
    """Read a result; None without one. What is no plain file, or too large, is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(MAX_RESULT_BYTES + 1)
        except OSError:
            return None
