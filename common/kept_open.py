"""An async context manager that a thread keeps open, for callers whose event loops come and go."""

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar
from weakref import finalize

T = TypeVar("T")


class KeptOpen(Generic[T]):
    """Opens an async context manager in a thread with an event loop of its own, until `close`. Calls block.

    It is closed too when nobody refers to it any more, and at the end of the interpreter.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._opened: Future[T] = Future()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        thread = threading.Thread(target=_run, args=(manager, started, self._opened), name="lightningbus", daemon=True)
        thread.start()
        self.close = finalize(self, _close, *started.result(), thread)
        """Closes it, or gives the opening up, and waits for that."""

    def wait(self) -> T:
        """Wait until it is open, and return what the context manager yields; raises what it raises."""
        return self._opened.result()


def _run(
    manager: AbstractAsyncContextManager[T],
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]",
    opened: "Future[T]",
) -> None:
    async def keep() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        async with manager as value:
            opened.set_result(value)
            await asyncio.Event().wait()

    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(keep())
        if not opened.done():
            opened.set_exception(CancelledError())
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)


def _close(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]", thread: threading.Thread) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(task.cancel)
    thread.join()
