"""Child processes that end with their parent, however that ends."""

import ctypes
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def ends_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """A ``preexec_fn``: Linux sends the child ``number`` when the thread that started it is gone, by kill -9 too.

    https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html; None where there is no such call.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork: nothing may be loaded after it
    return lambda: libc.prctl(PR_SET_PDEATHSIG, number)
