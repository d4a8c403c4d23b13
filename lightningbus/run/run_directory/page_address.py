"""Address of the page that already serves this directory, so that a second ``lightningbus ui`` prints it and ends."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightningbus.run.run_directory.directory import RUNS

POLL_SECONDS = 0.1
START_SECONDS = 30.0
"""Longest wait, in seconds, for another process to have an address."""

Announce = Callable[[str], None]


@contextmanager
def claim_page(options: Sequence[str | None], runs: Path = RUNS) -> Iterator[Announce | str]:
    """Claim the page with these options in this directory while the block runs.

    Yields the function to announce the address with, or the address of the page that is served already.
    """
    if not runs.is_dir():
        yield lambda url: None
        return
    digest = hashlib.sha256(json.dumps(list(options)).encode()).hexdigest()[:12]  # an address may hold a password
    file = os.open(runs / f".ui-{digest}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        url = _wait_for_address(file)
        if url is not None:
            yield url
            return
        os.ftruncate(file, 0)
        yield lambda url: _write(file, url)
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def _wait_for_address(file: int) -> str | None:
    """Wait for the lock or for the address of its owner; None: this process has the lock now."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            url = os.pread(file, 1000, 0).decode()
            if url or time.monotonic() > deadline:
                return url or "another terminal, which is still opening the store"
        time.sleep(POLL_SECONDS)  # nobody tells when a lock is free


def _write(file: int, url: str) -> None:
    os.pwrite(file, url.encode(), 0)
