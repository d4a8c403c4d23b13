"""Labels that people give a run: tags, a note, and whether it is archived; one file of its directory keeps them."""

import fcntl
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.whole_file import write_whole

LABELS = "labels.json"
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
MAX_NOTE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Labels:
    """Content of `LABELS`; a run without that file has the defaults."""

    tags: tuple[str, ...] = ()
    note: str = ""
    is_archived: bool = False
    run_id: str = ""
    """Id of a renamed run in the store; empty: the directory's name has it."""


def read_labels(directory: Path) -> Labels:
    """Read the labels of a run's directory; raises `UserError` when their file cannot be read."""
    path = directory / LABELS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Labels)
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): correct it, or delete it") from error


def read_all_labels(runs: Path) -> dict[str, Labels]:
    """Read the labels of all runs of a directory that have any, by their ids and by the names of their directories.

    A file that cannot be read is left out.
    """
    by_id, by_name = {}, {}
    for path in sorted(runs.glob(f"[!.]*/{LABELS}")):
        if not path.parent.is_symlink():
            with suppress(UserError):
                labels = read_labels(path.parent)
                by_id[labels.run_id or path.parent.name] = by_name[path.parent.name] = labels
    return by_id | by_name


def change_labels(directory: Path, change: Callable[[Labels], Labels]) -> Labels:
    """Replace a run's labels by ``change`` of them, whole or not at all; return the new ones.

    Processes that do so at once wait for each other. Raises `UserError` where the file cannot be read or written.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{directory} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        labels = change(read_labels(directory))
        before = os.fstat(descriptor)
        write_whole(directory / LABELS, msgspec.json.format(msgspec.json.encode(asdict(labels))).decode() + "\n")
        os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))  # the time at which the run wrote last
        return labels
    finally:
        os.close(descriptor)


def parse_tag_changes(changes: Sequence[str], removed: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the tags to add and to remove: ``good`` and ``+good`` add one, ``-bad`` removes one. Pure.

    Raises `UserError` for what is not a tag, for a tag of both kinds, and where there is none.
    """
    to_remove = [*(each[1:] for each in changes if each.startswith("-")), *removed]
    to_add = [each.removeprefix("+") for each in changes if not each.startswith("-")]
    for tag in (*to_add, *to_remove):
        if not TAG.fullmatch(tag):
            raise UserError(f"{tag!r} is not a tag: letters, digits, _ . : and -, at most 64, and - is not the first")
    if both := sorted(set(to_add) & set(to_remove)):
        raise UserError(f"tag {both[0]!r} is to be added and removed: give it once")
    if not to_add and not to_remove:
        raise UserError("give tags: `+good` adds one, and `-bad` removes one")
    return to_add, to_remove


def edit_tags(labels: Labels, to_add: Sequence[str], to_remove: Sequence[str]) -> Labels:
    """Return labels with tags added and removed; raises `UserError` for one to remove that is not there. Pure."""
    for tag in to_remove:
        if tag not in labels.tags:
            hint = suggest_name(tag, labels.tags) if labels.tags else "the run has none"
            raise UserError(f"there is no tag {tag!r} to remove; {hint}".rstrip("; "))
    return replace(labels, tags=tuple(tag for tag in dict.fromkeys((*labels.tags, *to_add)) if tag not in to_remove))


def edit_note(labels: Labels, note: str) -> Labels:
    """Return labels with another note, empty for none; raises `UserError` for one that is too long. Pure."""
    if len(note) > MAX_NOTE_CHARS:
        raise UserError(f"the note has {len(note)} characters: at most {MAX_NOTE_CHARS} are kept")
    if any("\ud800" <= character <= "\udfff" for character in note):
        raise UserError("the note is not UTF-8")
    return replace(labels, note=note.strip())
