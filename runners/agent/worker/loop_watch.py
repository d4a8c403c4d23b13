"""Finds the job that blocks the event loop of a shared process; `worker_script` loads this file there alone.

Python 3.8 or newer, standard library only. A thread looks at what the loop runs, without its help: a call of the loop
that does not return blocks all jobs. Code that also keeps Python's interpreter lock stops this thread too, and is not
seen.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SAMPLE_SECONDS = 0.2
"""Between two looks."""
BLOCKED_SECONDS = 1.0
"""A call of the loop that takes longer blocks it."""
LOOP_PASS = "_run_once"
"""Function of a loop that calls one handle after the other."""

JOB: contextvars.ContextVar[int | None] = contextvars.ContextVar("lightningbus_job", default=None)
"""The job that runs in this context: its tasks and callbacks have it from the task that made them."""


def find_running_handle(thread_id: int) -> Any:
    """Return the handle that the loop of a thread runs; None while it waits or is between two."""
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code.co_name != LOOP_PASS:
        if frame.f_code is asyncio.Handle._run.__code__:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


class LoopWatch:
    """Reports from a thread which job blocks the loop of the thread that makes it, and None once none does.

    ``report`` gets a job, is called again with the same one until it returns True, and may be called by any thread.
    """

    def __init__(self, report: Callable[[int | None], bool]) -> None:
        self._report, self._thread_id = report, threading.get_ident()
        self._handle: Any = None
        self._since = 0.0
        self._reported: int | None = None

    def start(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            job = self._find_blocker()
            if job != self._reported and self._report(job):
                self._reported = job

    def _find_blocker(self) -> int | None:
        handle, now = find_running_handle(self._thread_id), time.monotonic()
        if handle is None or handle is not self._handle:
            self._handle, self._since = handle, now
        if handle is None or now - self._since < BLOCKED_SECONDS:
            return None
        job: int | None = handle._context.get(JOB)
        return job
