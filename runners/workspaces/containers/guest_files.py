"""Files inside a container: packed, and unpacked over others. Python 3.8 or newer, standard library only."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CHUNK = 64 * 1024
DATA, LISTING = b"d", b"l"
"""Kinds of what is packed: a piece of a tar, and of the paths of all files."""


def replace_files(reading: int, directory: str, removed: list[str]) -> int:
    """Remove files of a directory and unpack others over it; return the time of what was made last, in ns."""
    with open(reading, "rb") as file:
        os.makedirs(directory, exist_ok=True)
        for path in removed:
            remove(os.path.join(directory, path))
        unpack_over(file, directory)
    handle, name = tempfile.mkstemp(dir=directory)
    os.close(handle)
    since_ns = os.stat(name).st_ctime_ns
    os.unlink(name)
    return since_ns


def unpack_over(file: BinaryIO, directory: str, admit: Callable[[tarfile.TarInfo], None] | None = None) -> None:
    """Unpack a tar over the files of a directory: whatever stands in the way is replaced, and no link is followed."""
    with tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            if admit is not None:
                admit(member)
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            is_plain = member.isreg() and not member.issparse()
            if not parts or ".." in parts or not (is_plain or member.isdir() or member.issym()):
                continue
            place = directory
            for part in parts[:-1]:
                place = os.path.join(place, part)
                make_directory(place)
            place = os.path.join(place, parts[-1])
            if member.isdir():
                make_directory(place)
                os.chmod(place, member.mode & 0o777 | 0o700)
                continue
            remove(place)
            if member.issym():
                os.symlink(member.linkname, place)
                continue
            content = tar.extractfile(member)
            with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                shutil.copyfileobj(content, target, CHUNK)  # type: ignore[arg-type]
            os.utime(place, (member.mtime, member.mtime))
            os.chmod(place, member.mode & 0o777 | 0o400)
    while file.read(CHUNK):  # to the end, or its writer would find it closed
        pass


def make_directory(path: str) -> None:
    """Make a directory, unless one is there."""
    if os.path.islink(path) or not os.path.isdir(path):
        remove(path)
        os.mkdir(path)


def remove(path: str) -> None:
    """Remove what is at a path, if anything is."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def pack_files(directory: str, since_ns: int, emit: Callable[[bytes, bytes], None]) -> None:
    """Pack what has changed since a time, by the kernel's clock; tell the paths of all but directories."""

    class Stream(io.RawIOBase):
        def write(self, data: Any) -> int:
            emit(DATA, bytes(data))
            return len(data)

    listing = bytearray()
    with tarfile.open(None, "w|", Stream(), CHUNK, format=tarfile.PAX_FORMAT) as tar:
        for path, entry, status in walk(directory):
            is_directory = entry.is_dir(follow_symlinks=False)
            if not is_directory:
                listing += os.fsencode(path) + b"\0"
                if len(listing) > CHUNK:
                    emit(LISTING, bytes(listing))
                    listing.clear()
            if status.st_ctime_ns < since_ns:
                continue
            with contextlib.suppress(OSError):
                tar.inodes = {}  # type: ignore[attr-defined]  # a second name of a file is a file
                member = tar.gettarinfo(entry.path, path)
                if member is None or not (member.isreg() or member.isdir() or member.issym()):
                    continue
                if not member.isreg():
                    tar.addfile(member)
                    continue
                with open(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                    tar.addfile(member, file)
    emit(LISTING, bytes(listing))


def walk(directory: str) -> Iterator[tuple[str, os.DirEntry[str], os.stat_result]]:
    """Yield what is below a directory, without following links; what cannot be read is left out."""
    places = [""]
    while places:
        place = places.pop()
        try:
            with os.scandir(os.path.join(directory, place)) as entries:
                children = list(entries)
        except OSError:
            continue
        for entry in children:
            with contextlib.suppress(OSError):
                path = place + entry.name
                yield path, entry, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    places.append(path + "/")
