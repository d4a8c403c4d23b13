"""Keeps apart what the rollouts of one process print; `worker_script` loads this file only for a shared process.

Python 3.8 or newer, standard library only. What is written to `sys.stdout` and `sys.stderr` goes on to the process's
standard error, as without this file. Its end is also kept for the rollout that wrote it: by its tasks and callbacks,
which have its context, by threads that it started, and by calls that it gave to a thread pool. Other ways out are not
seen: child processes, and libraries that write to the descriptor themselves.
"""

from __future__ import annotations

import contextvars
import io
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MAX_TAIL_BYTES = 16 * 1024
"""End of what a rollout printed that is kept."""


class OutputTail:
    """The end of what was printed; a text of it begins with a line that counts the bytes before."""

    def __init__(self) -> None:
        self._text, self._num_bytes = bytearray(), 0

    def add(self, data: bytes) -> None:
        """Append output; only the end is kept."""
        self._text += data
        self._num_bytes += len(data)
        del self._text[:-MAX_TAIL_BYTES]

    def take(self) -> str:
        """Return the text since the last call, and forget it."""
        missing, text = self._num_bytes - len(self._text), bytes(self._text).decode(errors="replace")
        self._text, self._num_bytes = bytearray(), 0
        return f"({missing} bytes before)\n{text}" if missing else text


class RolloutOutput:
    """The end of what one rollout prints, from any thread, until it is taken."""

    def __init__(self) -> None:
        self._tail, self._is_closed = OutputTail(), False
        self._lock = threading.RLock()  # a finalizer or a signal handler may print amid `add`

    def add(self, data: bytes) -> None:
        """Append output; nothing once it has been taken."""
        with self._lock:
            if not self._is_closed:
                self._tail.add(data)

    def take(self) -> str:
        """Return the text, and keep nothing from now on."""
        with self._lock:
            self._is_closed = True
            return self._tail.take()


ROLLOUT: contextvars.ContextVar[RolloutOutput | None] = contextvars.ContextVar("lightningbus_output", default=None)
"""The output of the rollout that runs in this context."""


class _Output(io.RawIOBase):
    """A descriptor whose writes are also kept for the rollout that makes them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        written = rest = bytes(data)
        output = ROLLOUT.get()
        if output is not None:
            output.add(written)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(written)


def install() -> None:
    """Replace the standard streams, and let threads belong to the rollout that starts them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw: Any = _Output(stream.fileno())
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True))
    _follow_threads()
    _follow_pools()


def begin() -> RolloutOutput:
    """Keep what this context and those that come of it print from now on."""
    output = RolloutOutput()
    ROLLOUT.set(output)
    return output


def _follow_threads() -> None:
    start = threading.Thread.start

    def start_in_rollout(self: threading.Thread) -> None:
        output = ROLLOUT.get()
        if output is not None:
            run = self.run

            def run_in_rollout() -> None:
                vars(self).pop("run", None)  # or the thread would refer to itself
                ROLLOUT.set(output)
                run()

            self.run = run_in_rollout  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_in_rollout  # type: ignore[method-assign]


def _follow_pools() -> None:
    submit = ThreadPoolExecutor.submit

    def submit_in_rollout(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return submit(self, _call_in_rollout, ROLLOUT.get(), fn, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_in_rollout  # type: ignore[method-assign, assignment]


def _call_in_rollout(output: RolloutOutput | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function for one rollout in a pool's thread, which another may have started."""
    before = ROLLOUT.set(output)
    try:
        return fn(*args, **kwargs)
    finally:
        ROLLOUT.reset(before)
