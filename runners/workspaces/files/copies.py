"""The fresh copy of a workspace's files: by overlay, by reflink, or whole, as the file system allows."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightningbus.runners.workspaces.errors import WorkspaceFailedError
from lightningbus.runners.workspaces.files.sources import copy_tree

CopyMethod = Literal["overlay", "reflink", "copy"]
OVERLAY_SCRIPT = Path(__file__).with_name("overlay_script.py")
TRIAL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class WorkspaceCopy:
    """One rollout's directories: ``work`` is what its programs see, ``home`` and ``grade`` are beside it."""

    folder: Path
    base: Path
    """The files it began with; nobody writes there."""
    method: CopyMethod

    @property
    def work(self) -> Path:
        """The files: a copy, or where a program's own overlay is mounted."""
        return self.folder / "work"

    @property
    def upper(self) -> Path:
        """Files that the agent wrote, with overlay."""
        return self.folder / "upper"

    @property
    def home(self) -> Path:
        """Home directory of the agent's programs."""
        return self.folder / "home"

    @property
    def grade(self) -> Path:
        """Home directory of the grader, where its result is written."""
        return self.folder / "grade"

    @property
    def marker(self) -> Path:
        """A file made after the copy: what was changed later is newer."""
        return self.folder / "marker"

    def make(self) -> None:
        """Make the directories; raise `WorkspaceFailedError`."""
        try:
            self.folder.mkdir()
            for directory in (self.home, self.grade):
                directory.mkdir()
            if self.method == "overlay":
                for directory in (self.work, self.upper, self.folder / "kernel"):
                    directory.mkdir()
                self.upper.chmod(0o755)
            else:
                copy_tree(self.base, self.work, "always" if self.method == "reflink" else "never")
            self.marker.touch()
        except OSError as error:
            raise WorkspaceFailedError(f"a workspace cannot be made in {self.folder.parent}: {error}") from error

    def mount_words(self, over: Path | None = None) -> list[str]:
        """Build the words before a program that make it see the copy; ``over``: with these files on top.

        With ``over`` the agent's files stay as they are: what the program writes is kept apart.
        """
        if self.method != "overlay":
            return []
        layers, upper, kernel = [self.base], "upper", "kernel"
        if over is not None:
            layers, upper, kernel = [over, self.upper, self.base], "graded", "graded-kernel"
            for name in (upper, kernel):
                (self.folder / name).mkdir(exist_ok=True)
            (self.folder / upper).chmod(0o755)
        lower = ":".join(os.path.relpath(layer, self.folder) for layer in layers)
        return [sys.executable, "-I", "-S", str(OVERLAY_SCRIPT), str(self.folder), lower, upper, kernel, "work"]


def choose_method(directory: Path, methods: Sequence[CopyMethod] = ("overlay", "reflink", "copy")) -> CopyMethod:
    """Try each way to copy in a directory; return the first that works and leaves the original as it is."""
    for method in methods:
        if method == "copy" or _works(directory, method):
            return method
    raise WorkspaceFailedError(f"{directory}: its file system cannot copy by {' or '.join(methods)}: set `copy: auto`")


def _works(directory: Path, method: CopyMethod) -> bool:
    with tempfile.TemporaryDirectory(dir=directory, prefix="trial-") as folder:
        base = Path(folder, "base")
        base.mkdir()
        (base / "file").write_text("before")
        copy = WorkspaceCopy(Path(folder, "copy"), base, method)
        try:
            copy.make()
            command = [*copy.mount_words(), "/bin/sh", "-c", "echo after > file"]
            done = subprocess.run(command, cwd=copy.work, capture_output=True, timeout=TRIAL_SECONDS, check=False)
        except (OSError, WorkspaceFailedError, subprocess.TimeoutExpired):
            return False
        written = (copy.upper if method == "overlay" else copy.work) / "file"
        return (
            done.returncode == 0
            and (base / "file").read_text() == "before"
            and written.exists()
            and written.read_text() == "after\n"
        )
