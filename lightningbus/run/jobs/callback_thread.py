"""The thread of a callback: calls one after the other, async ones too; no process waits for it to end."""

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Call = tuple[Callable[..., Any], Any, "Future[Any]"]


class CallbackThread:
    """Starts with the first call. Python's executors would keep a process from ending while a call hangs."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._last: Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call has not ended."""
        return self._last is not None and not self._last.done()

    def submit(self, function: Callable[..., Any], event: Any) -> "Future[Any]":
        """Call the function after the calls before; return its future result."""
        if self._last is None:
            self._thread.start()
        self._last = Future()
        self._calls.put((function, event, self._last))
        return self._last

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        while True:
            function, event, result = self._calls.get()
            if not result.set_running_or_notify_cancel():
                continue
            try:
                value = function(event)
                result.set_result(loop.run_until_complete(value) if inspect.isawaitable(value) else value)
            except BaseException as error:  # Whatever the user's code raises is the caller's to tell.
                result.set_exception(error)
