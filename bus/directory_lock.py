"""One process in a directory at a time: a lock that ends with its processes, however they end."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.errors import BusError
from common.procfs import is_alive

LOCK = ".lock"
"""The file in the directory that is locked; it holds the id of the process that locked it, for messages only."""
ORPHAN_SECONDS = 10.0
"""How long a lock is waited for whose process is gone: what it started is on its way out."""


class DirectoryInUseError(BusError):
    """Another process works in the directory; ``pid`` is the one that locked it, None if that is not known."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"{directory} is in use by another process{self.owner}: stop it, or use another directory")

    @property
    def owner(self) -> str:
        """The process in brackets, with a space before; empty if it is not known."""
        return f" (pid {self.pid})" if self.pid is not None else ""


@contextmanager
def lock_directory(directory: Path) -> Iterator[int]:
    """Keep a directory for this process while the block runs; it is made if it is missing, for its owner alone.

    Yields the lock's file descriptor: a child that inherits it keeps the lock for as long as it lives. Raises
    `DirectoryInUseError`, or `BusError` when the directory cannot be used.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        file = _lock(directory)
    except OSError as error:
        raise BusError(f"{directory} cannot be used: {error.strerror}") from error
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield file
    finally:
        os.close(file)


def _lock(directory: Path) -> int:
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(directory / LOCK, file):
                return file
            os.close(file)
        except BlockingIOError:
            words = os.pread(file, 20, 0)
            os.close(file)
            pid = int(words) if words.isdigit() else None
            if pid is None or is_alive(pid) or time.monotonic() > deadline:
                raise DirectoryInUseError(directory, pid) from None
            time.sleep(0.05)  # nobody tells when a lock is free


def _is_file_at(path: Path, file: int) -> bool:
    """Whether an open file is still the one of that path: the directory may have been moved away meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
