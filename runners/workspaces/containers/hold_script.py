"""First process of a workspace's container: ends when it is told to, or a minute after the last sign of its runner."""

import os
import signal
import sys
import time

CHILD, ALIVE, END = signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2
LEASE_SECONDS = 60


def main(max_seconds: float) -> None:
    """Collect what ends, until the lease or the time is over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {CHILD, ALIVE, END})
    end = time.monotonic() + max_seconds
    lease = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < min(end, lease):
        received = signal.sigtimedwait({CHILD, ALIVE, END}, 5)
        if received and received.si_signo == ALIVE:
            lease = time.monotonic() + LEASE_SECONDS
        if received and received.si_signo == END:
            break
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main(float(sys.argv[2]))
