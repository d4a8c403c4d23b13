"""Choice of versions that are published whole or as deltas, and of versions to delete."""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from lightningbus.schemas.weights.delta import encode_delta
from lightningbus.schemas.weights.events import DeltaLink
from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError

log = logging.getLogger(__name__)

PARENT = ".parent.safetensors"
DELTA = ".delta"
MAX_DELTA_RATIO = 0.5
"""A delta is sent if it takes at most this share of the whole file: a node has to put it together, too."""
SUFFIX = "-delta"


class DeltaChain:
    """The versions since the last whole one, and on disk the file of the newest: what the next may be a delta of."""

    def __init__(self, directory: Path, max_length: int) -> None:
        self._parent, self._delta, self._longest = directory / PARENT, directory / DELTA, max_length
        self.links: tuple[DeltaLink, ...] = ()

    async def delta_to(self, path: Path) -> Path | None:
        """Write a file of the changes since the last version; None if this one is better sent whole."""
        if not 0 < len(self.links) < self._longest:
            return None
        at_most = int(MAX_DELTA_RATIO * path.stat().st_size)
        try:
            worth = await asyncio.to_thread(encode_delta, self._parent, path, self._delta, at_most)
        except (OSError, InvalidSafetensorsError) as error:
            log.warning("the next version goes out whole: %s", error)
            return None
        return self._delta if worth else None

    async def record_published(self, link: DeltaLink, path: Path, whole: bool) -> None:
        """Note that a version is published: the next one may be a delta to it."""
        self._delta.unlink(missing_ok=True)
        links, self.links = (link,) if whole else (*self.links, link), ()
        if self._longest > 1:
            await asyncio.to_thread(link_or_copy, path, self._parent)
            self.links = links  # not before the file they end with is there


def link_or_copy(source: Path, path: Path) -> None:
    """Link ``source`` under another name, replacing a file there; copy only where the file system cannot link."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        try:
            temporary.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or somebody else's file
            shutil.copyfile(source, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # the same file already: then a rename does nothing


def blob_name(model: str, version: int, epoch: int) -> str:
    """Name of a version's blob; the epoch keeps two learners from writing the same one."""
    return f"{model}-{version:06d}-{epoch}"


def filter_model(model: str, names: Sequence[str]) -> list[str]:
    """Select the names that are versions of a model, oldest first."""
    matches = [(match, name) for name in names if (match := re.fullmatch(rf"{model}-(\d+)-(\d+)({SUFFIX})?", name))]
    return [name for match, name in sorted(matches, key=lambda entry: (int(entry[0][1]), int(entry[0][2]), entry[1]))]


def parse_version(model: str, name: str) -> int:
    """Parse the version from one of the names of `filter_model`; the inverse of `blob_name`."""
    return int(name.removeprefix(f"{model}-").split("-")[0])


def versions_to_delete(names: Sequence[str], kept: int, needed: Collection[str] = ()) -> list[str]:
    """List the versions, oldest first, that are neither ``needed``, nor among the last ``kept``, nor the base of these.

    The bases of a delta come right before it, back to a whole one; all of them stay as long as it does.
    """
    stays: set[str] = set()
    for at in (index for index, name in enumerate(names) if name in needed or index >= len(names) - kept):
        begin = at
        while begin > 0 and names[begin].endswith(SUFFIX):
            begin -= 1
        stays.update(names[begin : at + 1])
    return [name for name in names if name not in stays]
