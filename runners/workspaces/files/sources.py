"""Files of a task's workspace, fetched once: from a directory, a commit, or an archive below the runner's sources."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.archives import SizeLimits, unpack
from lightningbus.runners.workspaces.specification import leads_out

GIT_SECONDS = 300.0
GIT_ENVIRONMENT = {
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
"""No setting of the system or a user changes what is checked out."""
GIT_PLACE = "GIT_EXEC_PATH"
"""Variable with the directory of git's own programs."""


def find_source(path: str, sources: Sequence[Path]) -> Path:
    """Find a path below one of the sources; raise `WorkspaceRefusedError` where there is none."""
    for source in sources:
        place = source.absolute() / path
        if os.path.lexists(place):
            if not place.resolve().is_relative_to(source.resolve()):
                raise WorkspaceRefusedError(f"{path!r} leads out of {source} by a link")
            return place
    raise WorkspaceRefusedError(f"there is no {path!r} in {', '.join(map(str, sources))} (workspace.sources)")


def fetch(kind: str, source: Path | None, commit: str, target: Path, limits: SizeLimits) -> None:
    """Make the files of a workspace in ``target``, whole or not at all.

    Raises `WorkspaceRefusedError` for what no runner could take, `WorkspaceFailedError` for a fault of this machine.
    """
    try:
        if source is None:
            target.mkdir()
            return
        if kind == "git":
            _check_out(source, commit, target)
        elif kind == "archive":
            unpack(source, target, limits)
        else:
            if not source.is_dir():
                raise WorkspaceRefusedError(f"{source} is no directory")
            check_tree(source, limits)
            copy_tree(source, target, "auto")
        check_tree(target, limits)
    except OSError as error:
        raise WorkspaceFailedError(f"the files of {source} cannot be fetched: {error}") from error


def copy_tree(source: Path, target: Path, reflink: str) -> None:
    """Copy a directory by ``cp``, with links, times and modes; raise `WorkspaceFailedError`."""
    command = ["cp", "-a", "--no-preserve=ownership", f"--reflink={reflink}", "--", str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkspaceFailedError(f"{source} cannot be copied: {_last_line(done.stderr)}")
    target.chmod(0o755)


def check_tree(directory: Path, limits: SizeLimits) -> None:
    """Raise `WorkspaceRefusedError` for files beyond a bound, links that lead out, and what is no file."""
    num_files = num_bytes = 0
    places = [PurePosixPath()]
    while places:
        place = places.pop()
        with os.scandir(directory / place) as entries:
            for entry in entries:
                path = place / entry.name
                status = entry.stat(follow_symlinks=False)
                num_files, num_bytes = num_files + 1, num_bytes + status.st_size
                limits.check(num_files, num_bytes)
                if entry.is_dir(follow_symlinks=False):
                    places.append(path)
                elif entry.is_symlink():
                    if leads_out(path, str(Path(entry.path).readlink())):
                        raise WorkspaceRefusedError(f"the workspace has a link that leads out: {path}")
                elif not stat.S_ISREG(status.st_mode):
                    raise WorkspaceRefusedError(f"the workspace has a file that is not a regular one: {path}")


def _check_out(repository: Path, commit: str, target: Path) -> None:
    """Check out one commit without the others: an agent cannot look up how its task was solved later."""
    if not repository.is_dir():
        raise WorkspaceRefusedError(f"{repository} is not a git repository: it is not a directory")
    place = repository.resolve()
    with _trusting(place) as trust:
        resolved = _git(place, trust, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        id = resolved.stdout.strip()
        if resolved.returncode and resolved.stderr.strip():
            raise WorkspaceRefusedError(f"git cannot read the repository {repository}: {_last_line(resolved.stderr)}")
        if resolved.returncode or not id.isalnum():  # `^HEAD` excludes a commit, and names none.
            raise WorkspaceRefusedError(f"the git repository {repository} has no commit {commit[:80]!r}")
        object_format = _git(place, trust, "rev-parse", "--show-object-format").stdout.strip()
        commands = [
            ["init", "--quiet", "--initial-branch", "main", f"--object-format={object_format}"],
            ["fetch", "--quiet", "--no-tags", "--depth", "1", place.as_uri(), id],
            ["checkout", "--quiet", "-B", "main", "FETCH_HEAD"],
        ]
        target.mkdir()
        for command in commands:
            done = _git(target, trust, *command)
            if done.returncode:
                read = _git(place, trust, "archive", "--output", os.devnull, "--format", "tar", id)
                if read.returncode:
                    raise WorkspaceRefusedError(
                        f"git cannot read {commit!r} in the repository {repository}: {_last_line(read.stderr)}"
                    )
                reason = _last_line(done.stderr)
                raise WorkspaceFailedError(f"git {command[0]} of {commit!r} failed for {repository}: {reason}")
    (target / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


@contextmanager
def _trusting(repository: Path) -> Iterator[Path]:
    """Have a file of git's settings that trusts one repository of any owner, and nothing else, while the block runs."""
    with tempfile.NamedTemporaryFile("w", prefix="lightningbus-git-", errors="surrogateescape") as file:
        file.write("[safe]\n")
        for place in (repository, repository / ".git"):  # Git names one of them, the process that sends the other.
            quoted = str(place).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            file.write(f'\tdirectory = "{quoted}"\n')
        file.flush()
        yield Path(file.name)


def _git(directory: Path, settings: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run git in a directory; raise `WorkspaceFailedError` if it does not end."""
    place = directory.resolve()
    environment = git_environment(place) | {"GIT_CONFIG_GLOBAL": str(settings)}
    try:
        return subprocess.run(
            ["git", *words], cwd=place, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise WorkspaceFailedError(f"git {words[0]} did not end in {GIT_SECONDS:g} s") from None


def git_environment(directory: Path) -> dict[str, str]:
    """Build the environment of git in a directory, without the runner's own variables of git and the user's settings.

    A hook that starts a runner, say, has the variables of its own repository. No repository that the directory lies in
    is found.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name == GIT_PLACE}
    return {**ours, **GIT_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": str(directory.parent)}


def check_git() -> None:
    """Raise `WorkspaceFailedError` if git is not installed: diffs are made by it."""
    if shutil.which("git") is None:
        raise WorkspaceFailedError("git is not installed: a runner with workspaces needs it for their diffs")


def _last_line(text: str) -> str:
    """Return the last line that a program printed, joined with git's list of files below it."""
    return (text.strip().replace("\n\t", " ").splitlines() or ["it said nothing"])[-1][:300]
