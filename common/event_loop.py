"""Coroutines run from code that is not async, also where an event loop runs already, as in Jupyter."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` by an event loop in a thread of its own, and return its result.

    Ctrl-C cancels it, waits until it has cleaned up, and raises KeyboardInterrupt. An error with a true ``is_sentence``
    is raised without the traceback of the thread.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def run() -> T:
        task = asyncio.ensure_future(work)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with _keyboard_interrupt(), ThreadPoolExecutor(1, "lightningbus") as pool:
        ended = pool.submit(asyncio.run, run())
        try:
            return ended.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            wait([ended])
            raise
        except Exception as error:
            if getattr(error, "is_sentence", False):
                raise error.with_traceback(None) from None
            raise


@contextmanager
def _keyboard_interrupt() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt here: below `asyncio.run` it would only cancel a task of the blocked loop."""
    if threading.current_thread() is not threading.main_thread() or not _is_loop_running():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_loop_running() -> bool:
    """Return whether this thread runs an event loop, which has its own handler of Ctrl-C."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
