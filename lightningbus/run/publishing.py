"""Publishing the tasks of a file, with progress."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from bus.client import Bus
from bus.task_file import TaskInput
from bus.task_publisher import TaskPublisher
from schemas.tasks import Task

CHUNK_SIZE, MAX_CHUNKS_IN_FLIGHT = 64, 4
"""Samples that are recorded together, and how many such lots are on their way at once."""


def expand_samples(problems: Iterable[TaskInput], samples: int, suffix: str = "", **fields: Any) -> Iterator[Task]:
    """``samples`` tasks per problem; ``fields`` are `Task`'s others, the same for all."""
    for problem in problems:
        for sample in range(samples):
            yield Task(
                id=problem.id + suffix,
                input=problem.input,
                labels=problem.labels,
                sample_index=sample,
                group_size=samples,
                **fields,
            )


async def publish_all(bus: Bus, tasks: Iterable[Task], timeout: float, on_done: Callable[[], None]) -> tuple[int, int]:
    """Publish every task and wait until the bus has them all; returns how many are new, and how many were there.

    The first error stops it: `StreamFullError` when runners stay behind for ``timeout`` seconds.
    """
    new = total = 0
    pending: set[asyncio.Task[int]] = set()

    async def send(chunk: list[Task]) -> int:
        count = await TaskPublisher(bus).publish_tasks(chunk, timeout=timeout)
        for _ in chunk:
            on_done()
        return count

    try:
        left_over = iter(tasks)
        while chunk := list(islice(left_over, CHUNK_SIZE)):
            pending.add(asyncio.create_task(send(chunk)))
            total += len(chunk)
            if len(pending) >= MAX_CHUNKS_IN_FLIGHT:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                new += sum(finished.result() for finished in done)
        new += sum(await asyncio.gather(*pending))
    finally:
        for left in pending:
            left.cancel()
    return new, total - new
