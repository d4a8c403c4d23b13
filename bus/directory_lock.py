"""One process in a directory at a time: a lock that ends with its processes, however they end.

A process that only reads the directory has a lock of its own (`lock_for_reading`). It leaves when another process
wants the directory (`is_wanted`), so it never keeps a writer out. It may answer others: it announces its address
(`announce_reader`), and stays at least for as long as one of them uses it (`use_reader`).
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightningbus.bus.errors import BusError
from lightningbus.common.processes.procfs import is_alive

LOCK = ".lock"
"""The file in the directory that is locked; it holds the id of the process that locked it, for messages only."""
READER_LOCK = ".reader"
"""The same for the process that reads the directory; its address is on the second line."""
READER_USERS = ".readers"
"""The file that users of the reader's address lock together; its time of change is when one came or went."""
ORPHAN_SECONDS = 10.0
"""Seconds to wait for a lock whose process is gone: its children are about to exit."""
READER_SECONDS = 20.0
"""Seconds that a reader has to leave; its last query may take ten."""
PROBE_SECONDS = 0.2
"""A lock that ends within this time was a probe, see `is_wanted`. Probes share a lock: they keep out no probe."""


class DirectoryInUseError(BusError):
    """Another process works in the directory; ``pid`` is the one that locked it, None if unknown."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"{directory} is in use by another process{self.owner}: stop it, or use another directory")

    @property
    def owner(self) -> str:
        """The process in brackets, with a space before; empty if it is not known."""
        return f" (pid {self.pid})" if self.pid is not None else ""


@contextmanager
def lock_directory(directory: Path, is_private: bool = True) -> Iterator[int]:
    """Keep a directory for this process while the block runs; it is made if it is missing, for its owner alone.

    ``is_private``: so is one that was there before. A reader is waited for. Yields the lock's file descriptor: a
    child that inherits it keeps the lock for as long as it lives. Raises `DirectoryInUseError`, or `BusError` when
    the directory cannot be used.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_private:
            directory.chmod(0o700)
        file = _lock(directory)
    except OSError as error:
        raise BusError(f"{directory} cannot be used: {error.strerror}") from error
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        _wait_for_reader(directory)
        yield file
    finally:
        os.close(file)


@contextmanager
def lock_for_reading(directory: Path) -> Iterator[None]:
    """Read a directory while the block runs, until `is_wanted`; one reader at a time.

    Nobody finds its address after the block.

    Raises `DirectoryInUseError`, or `BusError` when the directory cannot be used.
    """
    try:
        file, pid = _try_lock(directory / READER_LOCK)
    except OSError as error:
        raise BusError(f"{directory} cannot be used: {error.strerror}") from error
    if file is None:
        raise DirectoryInUseError(directory, pid)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        if is_wanted(directory):
            raise DirectoryInUseError(directory, _read_pid(directory / LOCK))
        yield
    finally:
        os.ftruncate(file, 0)
        os.close(file)


def announce_reader(directory: Path, address: str) -> None:
    """Tell other processes where this one, which reads the directory, answers; empty: nowhere any more."""
    with suppress(FileNotFoundError), (directory / READER_LOCK).open("r+") as file:  # it may have been moved
        file.write(f"{os.getpid()}\n{address}\n")
        file.truncate()


def find_reader(directory: Path) -> str:
    """Return the address of the process that reads a directory; empty where none has announced one.

    The address in the file of a reader that was killed, or in a copy of the directory, is none: nobody has its lock.
    """
    try:
        file, _ = _try_lock(directory / READER_LOCK, may_create=False, kind=fcntl.LOCK_SH)
        if file is not None:
            os.close(file)
            return ""
        pid, _, address = (directory / READER_LOCK).read_text().partition("\n")
    except OSError:
        return ""
    return address.removesuffix("\n") if address.endswith("\n") and pid.isdigit() and is_alive(int(pid)) else ""


def use_reader(directory: Path) -> Callable[[], None]:
    """Keep the reader of a directory from leaving for lack of users; returns what ends that.

    It may leave to another process all the same. Raises `BusError` when the directory cannot be used.
    """
    try:
        file = os.open(directory / READER_USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BusError(f"{directory} cannot be used: {error.strerror}") from error
    fcntl.flock(file, fcntl.LOCK_SH)  # a reader that leaves keeps it for an instant, until its address is gone
    os.utime(file)

    def leave() -> None:
        os.utime(file)
        os.close(file)

    return leave


def leave_unused(directory: Path, seconds: float) -> bool:
    """Announce no address any more if nobody has used this reader for some seconds; return whether that is so."""
    try:
        file, _ = _try_lock(directory / READER_USERS, may_create=False)
    except OSError:  # the directory has been moved or removed
        return True
    if file is None:
        return False
    try:
        is_unused = time.time() - os.fstat(file).st_mtime >= seconds
        if is_unused:
            announce_reader(directory, "")
        return is_unused
    finally:
        os.close(file)


def is_wanted(directory: Path) -> bool:
    """Return whether another process keeps or wants a directory that this process reads."""
    try:
        file, _ = _try_lock(directory / LOCK, may_create=False, kind=fcntl.LOCK_SH)
    except FileNotFoundError:  # nobody has locked it yet, or it has been moved or removed
        return not directory.exists()
    except OSError:
        return True
    if file is not None:
        os.close(file)
    return file is None


def _wait_for_reader(directory: Path) -> None:
    """Wait until no process reads the directory; the lock keeps new readers out."""
    deadline = time.monotonic() + READER_SECONDS
    while (directory / READER_LOCK).exists():
        try:
            file, pid = _try_lock(directory / READER_LOCK)
        except OSError as error:
            raise BusError(f"{directory / READER_LOCK} cannot be used: {error.strerror}") from error
        if file is not None:
            os.close(file)
            return
        if time.monotonic() > deadline:
            raise DirectoryInUseError(directory, pid)
        time.sleep(0.05)  # nobody tells when a lock is free


def _lock(directory: Path) -> int:
    started = time.monotonic()
    while True:
        file, pid = _try_lock(directory / LOCK)
        if file is None:
            seconds = time.monotonic() - started
            if seconds > PROBE_SECONDS and (pid is None or is_alive(pid) or seconds > ORPHAN_SECONDS):
                raise DirectoryInUseError(directory, pid)
            time.sleep(0.05)  # nobody tells when a lock is free
        elif _is_file_at(directory / LOCK, file):
            return file
        else:
            os.close(file)


def _try_lock(path: Path, may_create: bool = True, kind: int = fcntl.LOCK_EX) -> tuple[int | None, int | None]:
    """Lock a file: return its descriptor, or None and the id of the process that holds it, if known."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if may_create else 0), 0o600)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None, _read_pid(path)
    return file, None


def _read_pid(path: Path) -> int | None:
    """Read the id of the process that locked a file last; None if it is not known."""
    try:
        pid = path.read_bytes()[:20].partition(b"\n")[0]
    except OSError:
        return None
    return int(pid) if pid.isdigit() else None


def _is_file_at(path: Path, file: int) -> bool:
    """Return whether an open file still is the one at that path: the directory may have been moved away."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
