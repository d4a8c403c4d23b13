"""Locks of a run's directory: whether a process runs it, and a lock of all of its parts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from lightningbus.bus.directory_lock import LOCK, DirectoryInUseError, is_wanted, lock_directory
from lightningbus.bus.errors import BusError
from lightningbus.run.run_directory.directory import LOCKED_PARTS, RunDirectory


def is_up(run: RunDirectory) -> bool:
    """Return whether a process runs it, also one that has no address yet."""
    with suppress(BusError):
        if run.read_endpoints() is not None:
            return True
    return (run.path / LOCK).exists() and is_wanted(run.path)


@contextmanager
def lock_run(run: RunDirectory) -> Iterator[None]:
    """Lock the directory and all of its parts while the block runs, which may move or delete it.

    Pages that read its files leave it. What a link in it leads to is not touched. Raises `bus.BusError` while another
    process works in it.
    """
    with ExitStack() as locks:
        try:
            locks.enter_context(lock_directory(run.path))
        except DirectoryInUseError as error:
            raise BusError(f"run {run.path.name!r} is up{error.owner}: stop it first") from error
        for part in (run.path / name for name in LOCKED_PARTS):
            if part.exists() and not part.is_symlink():
                locks.enter_context(lock_directory(part))
        yield
