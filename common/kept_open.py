"""An async context manager that a thread keeps open, for callers whose event loops come and go."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar
from weakref import finalize

T = TypeVar("T")


class KeptOpen(Generic[T]):
    """Opens an async context manager in a thread with an event loop of its own, until `close`. Its calls block.

    It is closed too when what ``until`` returns for its value raises, when nobody refers to it any more, and at the end
    of the interpreter.
    """

    def __init__(
        self, manager: AbstractAsyncContextManager[T], until: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._opened: Future[T] = Future()
        self._ended: Future[None] = Future()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        arguments = (manager, until or _never, started, self._opened, self._ended)
        thread = threading.Thread(target=_run, args=arguments, name="lightningbus", daemon=True)
        thread.start()
        self.close = finalize(self, _close, *started.result(), thread)  # raises what keeps the loop from starting
        """Closes it, or gives the opening up, and waits for that."""

    def wait(self) -> T:
        """Wait until it is open, and return what the context manager yields; raises what it raises."""
        return self._opened.result()

    async def wait_ended(self) -> None:
        """Wait until it is closed, in any event loop; raises what closed it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: "Future[None]") -> None:
            with suppress(RuntimeError):  # nobody waits any more: the loop has ended
                loop.call_soon_threadsafe(ended.set)

        self._ended.add_done_callback(wake)
        await ended.wait()
        self._ended.result()


def _run(
    manager: AbstractAsyncContextManager[T],
    until: Callable[[T], Awaitable[object]],
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]",
    opened: "Future[T]",
    ended: "Future[None]",
) -> None:
    async def keep() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        async with manager as value:
            opened.set_result(value)
            await until(value)

    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(keep())
        if not opened.done():
            opened.set_exception(CancelledError())
        ended.set_result(None)
    except BaseException as error:
        if not started.done():  # there was no event loop
            started.set_exception(error)
        if not opened.done():
            opened.set_exception(error)
        ended.set_exception(error)


async def _never(_: object) -> None:
    await asyncio.Event().wait()


def _close(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]", thread: threading.Thread) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(task.cancel)
    thread.join()
