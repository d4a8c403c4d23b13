"""What a task says about its workspace: the field ``workspace`` of its input. Pure."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lightningbus.runners.workspaces.errors import WorkspaceRefusedError

KEY = "workspace"
"""Field of a task's input; the agent does not get it."""
KINDS = ("directory", "git", "archive")
MAX_PATTERNS = 32
IMAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:/@-]{0,511})?")
"""A name of an image, or none; it becomes part of requests."""
Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class GradeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grader: a command that runs in the workspace after the agent."""

    command: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=256)]
    files: str = ""
    """Directory of a source whose files are copied over those of the workspace; the agent never sees it."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    needs_result: bool = False
    """The command has to write a result; else its status counts where it wrote none."""


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workspace: one of directory, git and archive; with none of them the files of its image, or no file."""

    directory: str = ""
    git: str = ""
    """A repository, bare or not."""
    commit: str = "HEAD"
    archive: str = ""
    """A file of tar, also compressed, or zip."""
    image: str = ""
    """The image of its container, for docker and kubernetes; default: the runner's."""
    workdir: str = ""
    """Its directory in a container; default: /workspace, and without other files the WORKDIR of its image."""
    artifacts: Annotated[tuple[Text, ...], Meta(max_length=MAX_PATTERNS)] = ()
    """Patterns of paths: files that the agent wrote, and that the rollout keeps beside its diff."""
    grade: GradeSpec | None = None

    @property
    def kind(self) -> str:
        """The kind of source that it names, empty if none."""
        return next((kind for kind in KINDS if getattr(self, kind)), "")

    @property
    def key(self) -> tuple[str, ...]:
        """The identity of the files, the same for all tasks that begin with them."""
        if not self.kind and self.image:
            return ("image", self.image, self.workdir)
        return (self.kind, getattr(self, self.kind) if self.kind else "", self.commit if self.git else "")


def parse_workspace(task: Any) -> WorkspaceSpec:
    """Read the workspace of a task's input; one without the field gets an empty workspace.

    Raises `WorkspaceRefusedError`.
    """
    if not isinstance(task, Mapping) or KEY not in task:
        return WorkspaceSpec()
    try:
        spec = msgspec.convert(task[KEY], WorkspaceSpec)
    except msgspec.ValidationError as error:
        raise WorkspaceRefusedError(f"the task's workspace is malformed: {error}") from None
    named = [kind for kind in KINDS if getattr(spec, kind)]
    if len(named) > 1:
        raise WorkspaceRefusedError(f"the task's workspace names {' and '.join(named)}: it can have one of them")
    if spec.commit.startswith("-") or not spec.commit.isprintable() or not spec.commit:
        raise WorkspaceRefusedError(f"the task's workspace names the commit {spec.commit[:80]!r}, which is none")
    if not IMAGE.fullmatch(spec.image):
        raise WorkspaceRefusedError(f"the task's workspace names the image {spec.image[:80]!r}, which is none")
    if spec.workdir and (not spec.workdir.startswith("/") or not is_inside(spec.workdir[1:])):
        raise WorkspaceRefusedError(f"{spec.workdir[:200]!r} is no directory of an image: workdir is an absolute path")
    paths = [getattr(spec, kind) for kind in named]
    if spec.grade is not None and spec.grade.files:
        paths.append(spec.grade.files)
    for path in paths:
        if not is_inside(path):
            raise WorkspaceRefusedError(f"{path[:200]!r} is no path below `workspace.sources` of the runner")
    return spec


def without_workspace(task: Any) -> Any:
    """Take the workspace out of a task's input: the rest is what the agent gets."""
    if not isinstance(task, Mapping) or KEY not in task:
        return task
    return {name: value for name, value in task.items() if name != KEY}


def is_inside(path: str) -> bool:
    """Return whether a relative path names something below its directory, by its text."""
    parts = PurePosixPath(path).parts
    return "\0" not in path and bool(parts) and parts[0] != "/" and ".." not in parts


def leads_out(link: PurePosixPath, target: str) -> bool:
    """Return whether a symbolic link leads out of the directory that its path is relative to."""
    if target.startswith("/"):
        return True
    depth = len(link.parts) - 1
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False
