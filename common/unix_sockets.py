"""Unix sockets in private directories that no other user can enter, removed together with their listener."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_PATH_BYTES = 107
"""Longest path of a Unix socket, in bytes: https://man7.org/linux/man-pages/man7/unix.7.html."""
MAX_NAME_BYTES = 36
"""Longest file name of a socket in such a directory, in bytes: a UUID, as vLLM uses."""


class PathTooLongError(OSError):
    """The directory of temporary files has too long a path for a Unix socket; the message names it."""


@contextmanager
def private_directory(purpose: str) -> Iterator[Path]:
    """Make an empty directory of mode 0700 for sockets, removed afterwards; raise `PathTooLongError`."""
    directory = Path(tempfile.mkdtemp(prefix=f"lightningbus-{purpose}-"))
    try:
        if len(os.fsencode(directory)) + 1 + MAX_NAME_BYTES > MAX_PATH_BYTES:
            raise PathTooLongError(f"TMPDIR: {directory.parent} is too long for a Unix socket: set a shorter one")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def bind_unix_socket(path: Path) -> socket.socket:
    """Bind a new Unix socket to a path, ready to listen."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    return listener
