"""Changes that an agent made in its workspace, and their diff."""

import filecmp
import itertools
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightningbus.runners.workspaces.files.copies import WorkspaceCopy
from lightningbus.runners.workspaces.files.sources import git_environment

MAX_CHANGES = 10_000
"""Changed files that are looked at; an agent may make any number."""
MAX_FILE_BYTES = 1024 * 1024
"""Largest file whose change stands in the diff."""
MAX_DIFF_BYTES = 16 * 1024 * 1024
REPOSITORY = ".git"
"""Directory whose changes are not told: the agent's commits are in the files."""
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
DIFF = ["git", "diff", "--no-index", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed file: before and after; None where there is none."""

    path: str
    before: Path | None
    after: Path | None


def find_changes(copy: WorkspaceCopy) -> list[Change]:
    """List the files that differ from those a copy began with, by path."""
    if copy.method == "overlay":
        candidates = _written(copy.base, copy.upper, "")
    else:
        candidates = _newer(copy.base, copy.work, "", copy.marker.stat().st_ctime_ns)
    return _select_changes(candidates)


def compare_listing(base: Path, upper: Path, removed: Sequence[str]) -> list[Change]:
    """List the files of ``upper`` that differ from those of ``base``, and those of ``base`` that are gone, by path."""
    gone = [Change(path, base / path, None) for path in removed]
    written = []
    for path in list_files(upper):
        before = base / path
        is_file = os.path.lexists(before) and (before.is_symlink() or not before.is_dir())
        written.append(Change(path, before if is_file else None, upper / path))
    changes = (change for change in (*gone, *written) if not f"{change.path}/".startswith(f"{REPOSITORY}/"))
    return _select_changes(changes)


def list_files(directory: Path) -> list[str]:
    """List the paths of all files below a directory, and of links."""
    paths, places = [], [""]
    while places:
        place = places.pop()
        for entry in _entries(directory / place):
            path = f"{place}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                places.append(f"{path}/")
            else:
                paths.append(path)
    return paths


def make_diff(place: Path, changes: list[Change]) -> tuple[bytes, int]:
    """Make the diff that ``git apply`` takes, in a directory; return it with the number of changes that it leaves out.

    A diff beyond `MAX_DIFF_BYTES` is cut off there.
    """
    if not changes:
        return b"", 0
    folder = place / "diff"
    num_left_out = 0
    for side in ("a", "b"):
        (folder / side).mkdir(parents=True)
    for change in changes:
        if not all(_fits(path) for path in (change.before, change.after) if path is not None):
            num_left_out += 1
            continue
        for side, path in (("a", change.before), ("b", change.after)):
            if path is not None:
                place = folder / side / change.path
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, place, follow_symlinks=False)
    command = [*DIFF, "--no-prefix", "a", "b"]
    with subprocess.Popen(
        command, cwd=folder, env=git_environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        diff = process.stdout.read(MAX_DIFF_BYTES)
        process.kill()  # it has ended, or has more to say than is kept
    return diff, num_left_out


def _select_changes(candidates: Iterator[Change]) -> list[Change]:
    """Return the first `MAX_CHANGES` candidates that differ, by path."""
    changes = itertools.islice((change for change in candidates if _differs(change)), MAX_CHANGES)
    return sorted(changes, key=lambda change: change.path)


def _written(base: Path, upper: Path, place: str) -> Iterator[Change]:
    """Yield what the upper directory of an overlay says about a place; whatever it does not name is as before."""
    for entry in _entries(upper / place):
        path = f"{place}{entry.name}"
        if path == REPOSITORY:
            continue
        status = entry.stat(follow_symlinks=False)
        before = base / path
        was_directory = before.is_dir() and not before.is_symlink()
        if stat.S_ISDIR(status.st_mode):
            if _is_opaque(entry.path):
                yield from _removed(base, path, upper)
            elif not was_directory and os.path.lexists(before):
                yield Change(path, before, None)
            yield from _written(base, upper, f"{path}/")
        else:
            after = None if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0 else Path(entry.path)
            if was_directory:
                yield from _removed(base, path, None)
            if after is not None or not was_directory:
                yield Change(path, None if was_directory or not os.path.lexists(before) else before, after)


def _removed(base: Path, path: str, upper: Path | None) -> Iterator[Change]:
    """Yield the files of a directory that is gone; those that ``upper`` has again are not told here."""
    if not (base / path).is_dir() or (base / path).is_symlink():
        if os.path.lexists(base / path):
            yield Change(path, base / path, None)
        return
    for entry in _entries(base / path):
        inner = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _removed(base, inner, upper)
        elif upper is None or not os.path.lexists(upper / inner):
            yield Change(inner, Path(entry.path), None)


def _newer(base: Path, work: Path, place: str, copied_ns: int) -> Iterator[Change]:
    """Yield what may differ between two directories; the agent cannot set the time at which it changed a file."""
    befores = {entry.name: entry for entry in os.scandir(base / place)} if (base / place).is_dir() else {}
    for entry in _entries(work / place):
        path = f"{place}{entry.name}"
        before = befores.pop(entry.name, None)
        if path == REPOSITORY:
            continue
        if entry.is_dir(follow_symlinks=False):
            if before is not None and not before.is_dir(follow_symlinks=False):
                yield Change(path, Path(before.path), None)
            yield from _newer(base, work, f"{path}/", copied_ns)
            continue
        if before is not None and before.is_dir(follow_symlinks=False):
            yield from _removed(base, path, None)
            before = None
        status = entry.stat(follow_symlinks=False)
        if before is None or status.st_ctime_ns >= copied_ns:
            yield Change(path, Path(before.path) if before is not None else None, Path(entry.path))
    for name, before in befores.items():
        if f"{place}{name}" == REPOSITORY:
            continue
        if before.is_dir(follow_symlinks=False):
            yield from _removed(base, f"{place}{name}", None)
        else:
            yield Change(f"{place}{name}", Path(before.path), None)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """List a directory; one that the agent closed, or put too deep, shows nothing."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _differs(change: Change) -> bool:
    """Return whether a file is another one; one that was only touched, or written as it was, is not."""
    if change.before is None or change.after is None:
        return True
    before, after = change.before.lstat(), change.after.lstat()
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(after.st_mode):
        return True
    if stat.S_ISLNK(before.st_mode):
        return change.before.readlink() != change.after.readlink()
    if before.st_mode != after.st_mode or before.st_size != after.st_size:
        return True
    return not _is_readable(change.after) or not filecmp.cmp(change.before, change.after, shallow=False)


def _fits(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISLNK(status.st_mode) or (_is_readable(path) and status.st_size <= MAX_FILE_BYTES)


def _is_readable(path: Path) -> bool:
    """Return whether a file is a regular one that we may read; a pipe would keep its reader waiting."""
    return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK, follow_symlinks=False)


def _is_opaque(directory: str) -> bool:
    for name in OPAQUE:
        try:
            return os.getxattr(directory, name, follow_symlinks=False) == b"y"
        except OSError:
            continue
    return False
