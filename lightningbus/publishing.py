"""Publishing the tasks of a file, with progress."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bus import Bus
from bus.tasks import Problem
from schemas.events import Task

TOGETHER = 256
"""Samples on their way at once."""


def samples_of(problems: Iterable[Problem], samples: int, suffix: str = "", **fields: Any) -> Iterator[Task]:
    """``samples`` tasks per problem; ``fields`` are `Task`'s others, the same for all."""
    for problem in problems:
        for sample in range(samples):
            yield Task(id=problem.id + suffix, input=problem.input, sample=sample, samples=samples, **fields)


async def publish_all(bus: Bus, tasks: Iterable[Task], timeout: float, on_done: Callable[[], None]) -> int:
    """Publish every task and wait until the bus has them all; returns how many.

    The first error stops it: `bus.StreamFull` when runners stay behind for ``timeout`` seconds.
    """
    count = 0
    pending: set[asyncio.Task[None]] = set()

    async def one(task: Task) -> None:
        await bus.publish_task(task, timeout=timeout)
        on_done()

    try:
        for task in tasks:
            pending.add(asyncio.create_task(one(task)))
            count += 1
            if len(pending) >= TOGETHER:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for finished in done:
                    finished.result()
        await asyncio.gather(*pending)
    finally:
        for left in pending:
            left.cancel()
    return count
