"""The share of the processors that a process has while others compute too."""

import contextlib
import os
import time
from pathlib import Path

COMPUTING_NICENESS = 10
"""Niceness of roles that compute on the processors for as long as they run."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Niceness of this process's session: https://man7.org/linux/man-pages/man7/sched.7.html."""
TRIES, PAUSE_SECONDS = 3, 0.12
"""Linux lets a user without privileges change the niceness of sessions every 100 ms only."""


def lower_priority(niceness: int) -> None:
    """Raise the niceness of this process, and give its session that of the process.

    Linux may share the processors between sessions first, however nice their processes are. Call it in the child that
    is the head of a session, before it starts threads. What the system refuses stays as it is.

    :param niceness: What is added to the inherited niceness; 0 gives the session the inherited one.
    """
    with contextlib.suppress(OSError):
        if (nice := os.nice(niceness)) == 0:
            return
        for _ in range(TRIES):
            try:
                AUTOGROUP.write_text(str(nice))
            except BlockingIOError:
                time.sleep(PAUSE_SECONDS)
            else:
                return
