"""Unix sockets of ours: each in a directory that no other user enters, and that goes with whoever listens there."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_PATH_BYTES = 107
"""Of a Unix socket, in bytes: https://man7.org/linux/man-pages/man7/unix.7.html."""
MAX_NAME_BYTES = 36
"""Of a socket in such a directory, in bytes: a UUID, as vLLM names its own."""


class PathTooLongError(OSError):
    """Temporary files lie too deep for a Unix socket; the message says where."""


@contextmanager
def private_directory(purpose: str) -> Iterator[Path]:
    """An empty directory of mode 0700 for sockets, removed afterwards; raises `PathTooLongError`."""
    directory = Path(tempfile.mkdtemp(prefix=f"lightningbus-{purpose}-"))
    try:
        if len(os.fsencode(directory)) + 1 + MAX_NAME_BYTES > MAX_PATH_BYTES:
            raise PathTooLongError(f"TMPDIR: {directory.parent} is too long for a Unix socket: set a shorter one")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def bind_unix_socket(path: Path) -> socket.socket:
    """A new Unix socket at a path, to be listened on."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    return listener
