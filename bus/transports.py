"""How large files travel beside the events: over the bus, in a directory both sides see, or by S3.

The manifest of a file names transport and place, so a reader follows whatever the writer chose. A broadcast is no
transport: it keeps nothing that could be asked for by name, so it is beside these, in `bus.collective`.
"""

import asyncio
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from bus.arriving import check, sha256_of
from bus.errors import BlobCorrupt, BusError
from schemas.weights import Blob, TransportName

if TYPE_CHECKING:
    from bus.connection import Bus

FICLONE = 0x40049409
"""The request of Linux that makes a file share another one's bytes (ioctl_ficlone(2))."""
COPY_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Transport(Protocol):
    """Named objects in buckets; `bus.blobs.Blobs` is one."""

    async def put(self, bucket: str, name: str, source: Path) -> Blob:
        """Store a file whole, replacing an older object; nobody sees half of it."""
        ...

    async def get(self, blob: Blob, path: Path) -> None:
        """Write a blob to ``path``, all of it or nothing.

        Raises `BlobCorrupt` if its bytes are not what the manifest says, `BusError` if it is not there.
        """
        ...

    async def names(self, bucket: str) -> list[str]:
        """Names of all objects of a bucket."""
        ...

    async def delete(self, bucket: str, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...


def transport(bus: "Bus", kind: TransportName, place: str) -> Transport:
    """The one a manifest or the settings name; raises `BusError` where it cannot be used here."""
    if kind == "file":
        return Directory(Path(place))
    if kind == "s3":
        try:
            from bus.s3 import S3
        except ImportError as error:
            raise BusError("transport s3 needs obstore: pip install 'lightningbus[s3]'") from error
        return S3(place)
    return bus.blobs


def key(bucket: str, name: str) -> str:
    """``bucket/name``; raises `BusError` for names that could lead elsewhere."""
    if not _NAME.fullmatch(bucket) or not _NAME.fullmatch(name):
        raise BusError(f"{bucket}/{name} is no name of a blob outside the bus")
    return f"{bucket}/{name}"


class Directory:
    """Files under ``directory/bucket``, which all see: one host, or a file system they share.

    Each side has bytes of its own: whoever may write to the directory changes neither what was put nor what was got.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, bucket: str, name: str, source: Path) -> Blob:
        """See `Transport`."""
        path = self._directory / key(bucket, name)
        try:
            size, digest = await asyncio.to_thread(_copied, source, path, None)
        except OSError as error:
            raise BusError(f"{path} cannot be written: {error.strerror}") from error
        return Blob(bucket=bucket, name=name, size=size, sha256=digest)

    async def get(self, blob: Blob, path: Path) -> None:
        """See `Transport`."""
        source = self._directory / key(blob.bucket, blob.name)
        try:
            await asyncio.to_thread(_copied, source, path, blob)
        except FileNotFoundError:
            raise BusError(f"{source} is not there (expired, or a directory this host does not see)") from None

    async def names(self, bucket: str) -> list[str]:
        """See `Transport`."""
        directory = self._directory / bucket
        return sorted(path.name for path in directory.glob("[!.]*")) if directory.exists() else []

    async def delete(self, bucket: str, name: str) -> None:
        """See `Transport`."""
        (self._directory / key(bucket, name)).unlink(missing_ok=True)


def _copied(source: Path, path: Path, expected: Blob | None) -> tuple[int, str]:
    """Size and SHA-256 of a file's copy under another name; if it is not what is expected it is not put there.

    What is verified is the copy, in which nobody writes who may write to the source.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arrived = path.with_name(f".arriving-{path.name}-{os.getpid()}")
    arrived.unlink(missing_ok=True)
    try:
        with _opened(source) as readable, arrived.open("xb") as writable:
            if expected is not None:  # by its size, before it fills the disk
                check(expected, os.fstat(readable.fileno()).st_size, expected.sha256)
            _copy(readable, writable)
        size, digest = arrived.stat().st_size, sha256_of(arrived)
        if expected is not None:
            check(expected, size, digest)
        arrived.replace(path)
    finally:
        arrived.unlink(missing_ok=True)
    return size, digest


def _opened(path: Path) -> BinaryIO:
    """A regular file, opened; what else may lie there, such as a pipe, would be waited for without end."""
    readable = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(readable.fileno()).st_mode):
        readable.close()
        raise BlobCorrupt(f"{path} is no file")
    return readable


def _copy(source: BinaryIO, copy: BinaryIO) -> None:
    """All bytes of a file as it is now; where the disk can do that, without a second time the room."""
    try:
        fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError:  # another file system, or one that cannot
        shutil.copyfileobj(source, copy, COPY_BYTES)
