"""Tasks that run side by side: cancelled for certain, and raced; blocking calls that may never return."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
RETRY_SECONDS = 1.0


async def cancel_and_wait(*tasks: "asyncio.Future[Any]", retry_after: float | None = RETRY_SECONDS) -> None:
    """Cancel tasks and wait until they have ended, whether by a result, an error or the cancellation.

    They are cancelled again every ``retry_after`` seconds: before Python 3.12 `asyncio.wait_for`, on which nats-py's
    requests rely, forgets a cancellation that comes together with its result
    (https://github.com/python/cpython/issues/86296). None: once, for work whose clean-up takes longer.
    """
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=retry_after)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # taken, or asyncio logs that nobody did


async def first_completed(*work: Awaitable[Any], retry_after: float | None = RETRY_SECONDS) -> set[int]:
    """Wait for the first to end and cancel the others, as `cancel_and_wait`; return the positions of those that ended.

    Raises the exception of one that ended.
    """
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = {index for index, task in enumerate(tasks) if task.done()}
        for index in ended:
            tasks[index].result()
        return ended
    finally:
        await cancel_and_wait(*tasks, retry_after=retry_after)


class WorkInterruptedError(Exception):
    """The interruption of `run_unless` came before the work ended."""


async def run_unless(
    interruption: Awaitable[object], work: Awaitable[T], retry_after: float | None = RETRY_SECONDS
) -> T:
    """Return the result of ``work``; cancel it as `cancel_and_wait` does if the interruption ends first.

    Raises the exception of the one that ended first, or `WorkInterruptedError`.
    """
    task = asyncio.ensure_future(work)
    await first_completed(task, interruption, retry_after=retry_after)
    if task.cancelled():
        raise WorkInterruptedError
    return task.result()


async def run_in_daemon_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a daemon thread and return its result; raise what the call raises.

    Unlike `asyncio.to_thread`, neither the end of the event loop nor that of the process waits for a cancelled call.
    Made for requests to a server that may never answer.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    threading.Thread(target=_settle, args=(loop, result, call), daemon=True).start()
    try:
        return await result
    finally:
        del result  # it has the error, whose traceback has this frame


def _settle(loop: asyncio.AbstractEventLoop, result: "asyncio.Future[T]", call: Callable[[], T]) -> None:
    """Give a future the result of a call, in the future's event loop."""

    def set_unless_done(set_result: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_result(value)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
        try:
            value = call()
        except BaseException as error:
            loop.call_soon_threadsafe(set_unless_done, result.set_exception, error)
        else:
            loop.call_soon_threadsafe(set_unless_done, result.set_result, value)
