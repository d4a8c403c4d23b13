"""The directory of a runner's workspaces: locked while it lives, and swept by the next runner once it does not."""

import contextlib
import fcntl
import logging
import os
import signal
import tempfile
import time
from pathlib import Path

from lightningbus.common.processes.procfs import PROC
from lightningbus.runners.agent.process import remove_directory
from lightningbus.runners.workspaces.errors import WorkspaceFailedError

log = logging.getLogger(__name__)

LOCK = "lock"
PREFIX = "runner-"
UNLOCKED_SECONDS = 60.0
"""Age at which a directory without a lock is one whose runner died before it made it."""


def default_root() -> Path:
    """Return the directory for the workspaces of all runners of this user."""
    return Path(tempfile.gettempdir()) / f"lightningbus-workspaces-{os.getuid()}"


class RunnerDirectory:
    """A directory with ``bases`` and ``copies`` that belongs to one runner; its lock ends with the process."""

    def __init__(self, root: Path) -> None:
        """Sweep what dead runners left below ``root``, and make a directory there; raise `WorkspaceFailedError`."""
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not {root.lstat().st_uid, root.stat().st_uid} <= {os.getuid()}:
                raise WorkspaceFailedError(f"{root} belongs to another user: set workspace.directory of the runner")
            sweep(root)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root.resolve()))
            pending = self.path / "pending"  # named when it is held: a sweeper never finds one that is not
            self._lock = os.open(pending, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            pending.rename(self.path / LOCK)
            for directory in (self.bases, self.copies):
                directory.mkdir()
        except OSError as error:
            raise WorkspaceFailedError(f"workspaces cannot be made in {root}: {error.strerror or error}") from error

    @property
    def bases(self) -> Path:
        """Files that workspaces begin with."""
        return self.path / "bases"

    @property
    def copies(self) -> Path:
        """A directory for each rollout."""
        return self.path / "copies"

    def close(self) -> None:
        """Remove the directory."""
        remove_directory(self.path)
        os.close(self._lock)


def sweep(root: Path) -> None:
    """Remove the directories of runners that are gone, and end what their agents left running."""
    for directory in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # just made by a runner that starts, or left by one that died there
                if time.time() - directory.stat().st_mtime > UNLOCKED_SECONDS:
                    remove_directory(directory)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            num_killed = _kill_leftovers(directory)
            remove_directory(directory)
            log.info("removed the workspaces of a runner that is gone, and ended %d processes", num_killed)
        except BlockingIOError:
            pass  # its runner lives
        finally:
            os.close(lock)


def _kill_leftovers(directory: Path) -> int:
    """End all processes that were started in a directory, or are in it."""
    num_killed = 0
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(int(entry.name))
            try:  # looked at after it was opened, so that the id is still this process's
                if _belongs_to(entry, directory):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    num_killed += 1
            finally:
                os.close(handle)
    return num_killed


def _belongs_to(process: Path, directory: Path) -> bool:
    inside = os.fsencode(directory) + b"/"
    for name, sign in (("environ", inside), ("cmdline", inside + b"copies/")):  # a sandbox names it by its arguments
        with contextlib.suppress(OSError):
            if sign in (process / name).read_bytes():
                return True
    with contextlib.suppress(OSError):
        return os.fsencode((process / "cwd").readlink()).startswith(inside)
    return False
