"""Files in a directory that both sides see."""

import asyncio
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from lightningbus.bus.errors import BusError, ChecksumMismatchError
from lightningbus.bus.jetstream.verified_download import sha256_of, verify_checksum
from lightningbus.bus.weights.transports.base import object_key
from lightningbus.schemas.weights.events import Blob

FICLONE = 0x40049409
"""The request of Linux that makes a file share another one's bytes (ioctl_ficlone(2))."""
COPY_BYTES = 1024 * 1024


class DirectoryTransport:
    """Files under ``directory/bucket``, on one host or a shared file system.

    Each side copies the bytes: a process that can write to the directory changes neither the source nor a fetched file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, bucket: str, name: str, source: Path) -> Blob:
        """See `Transport`."""
        path = self._directory / object_key(bucket, name)
        try:
            size, digest = await asyncio.to_thread(_copy_verified, source, path, None)
        except OSError as error:
            raise BusError(f"{path} cannot be written: {error.strerror}") from error
        return Blob(bucket=bucket, name=name, size=size, sha256=digest)

    async def get(self, blob: Blob, path: Path) -> None:
        """See `Transport`."""
        source = self._directory / object_key(blob.bucket, blob.name)
        try:
            await asyncio.to_thread(_copy_verified, source, path, blob)
        except FileNotFoundError:
            raise BusError(f"{source} is not there (expired, or a directory this host does not see)") from None

    async def list_names(self, bucket: str) -> list[str]:
        """See `Transport`."""
        directory = self._directory / bucket
        return sorted(path.name for path in directory.glob("[!.]*")) if directory.exists() else []

    async def delete(self, bucket: str, name: str) -> None:
        """See `Transport`."""
        (self._directory / object_key(bucket, name)).unlink(missing_ok=True)


def _copy_verified(source: Path, path: Path, expected: Blob | None) -> tuple[int, str]:
    """Copy a file under another name unless it differs from ``expected``; return size and SHA-256.

    The copy is verified: a process that can write to the source cannot write to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arrived = path.with_name(f".arriving-{path.name}-{os.getpid()}")
    arrived.unlink(missing_ok=True)
    try:
        with _open_source(source) as readable, arrived.open("xb") as writable:
            if expected is not None:  # check the size before it fills the disk
                verify_checksum(expected, os.fstat(readable.fileno()).st_size, expected.sha256)
            _copy(readable, writable)
        size, digest = arrived.stat().st_size, sha256_of(arrived)
        if expected is not None:
            verify_checksum(expected, size, digest)
        arrived.replace(path)
    finally:
        arrived.unlink(missing_ok=True)
    return size, digest


def _open_source(path: Path) -> BinaryIO:
    """Open a regular file; refuse anything else, such as a pipe, on which a read would block for ever."""
    readable = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(readable.fileno()).st_mode):
        readable.close()
        raise ChecksumMismatchError(f"{path} is no file")
    return readable


def _copy(source: BinaryIO, copy: BinaryIO) -> None:
    """Copy all bytes of a file; share disk blocks where the file system can."""
    try:
        fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError:  # another file system, or one that cannot
        shutil.copyfileobj(source, copy, COPY_BYTES)
