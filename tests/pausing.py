"""A process that stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.polling import until


def stop(pid: int) -> None:
    """Stop a process; returns once every thread of it has stopped.

    SIGSTOP alone is not enough: on a busy machine the other threads answer for some milliseconds more, and a signal
    that comes meanwhile may be handled first.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _thread_states(pid), {"T"})


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process for the block, as `stop` does."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> set[str]:
    """The kernel's letters for what the threads of a process do."""
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended meanwhile
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states
