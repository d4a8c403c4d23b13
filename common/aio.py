"""Tasks that run side by side: cancelled for certain, and raced."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")
RETRY_SECONDS = 1.0


async def cancel_and_wait(*tasks: "asyncio.Future[Any]", again: float = RETRY_SECONDS) -> None:
    """Cancel tasks and wait until they have ended, with whatever they end; ask ``again`` after so many seconds.

    Once is not enough: before Python 3.12 `asyncio.wait_for`, which nats-py's requests stand on, forgets a cancellation
    that comes together with what it waits for (https://github.com/python/cpython/issues/86296).
    """
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=again)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # taken, or asyncio complains that nobody looked


async def first_completed(*work: Awaitable[Any]) -> set[int]:
    """Run until the first ends and cancel the others; the positions of those that ended.

    Raises what one of those that ended raised.
    """
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = {index for index, task in enumerate(tasks) if task.done()}
        for index in ended:
            tasks[index].result()
        return ended
    finally:
        await cancel_and_wait(*tasks)


class Interrupted(Exception):
    """What `run_unless` waited for has happened before the work ended."""


async def run_unless(interruption: Awaitable[object], work: Awaitable[T]) -> T:
    """The result of ``work``. If the interruption ends first, the work is cancelled.

    Raises what ended first raised, or `Interrupted`.
    """
    task = asyncio.ensure_future(work)
    await first_completed(task, interruption)
    if task.cancelled():
        raise Interrupted
    return task.result()
