"""A child process that stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a child of ours for the block; it begins once every thread of the child has stopped.

    SIGSTOP alone is not enough: on a busy machine the other threads answer for some milliseconds more.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
