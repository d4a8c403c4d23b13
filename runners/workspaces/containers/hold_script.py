"""First process of a workspace's container: ends when it is told to, or a minute after its runner was last heard of."""

import os
import signal
import sys
import time

CHILD, ALIVE, END = signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2
signal.pthread_sigmask(signal.SIG_BLOCK, {CHILD, ALIVE, END})
end = time.monotonic() + float(sys.argv[2])
lease = time.monotonic() + 60
while time.monotonic() < min(end, lease):
    heard = signal.sigtimedwait({CHILD, ALIVE, END}, 5)
    if heard and heard.si_signo == ALIVE:
        lease = time.monotonic() + 60
    if heard and heard.si_signo == END:
        break
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
