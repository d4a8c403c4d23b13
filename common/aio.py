"""Cancelling tasks for certain."""

import asyncio
from typing import Any

AGAIN_SECONDS = 1.0


async def cancel(*tasks: "asyncio.Future[Any]", again: float = AGAIN_SECONDS) -> None:
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
