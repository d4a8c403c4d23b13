"""Takes published tasks back: those that no runner has finished leave the bus, and the record says so."""

import asyncio
import time
from collections.abc import Iterable
from itertools import groupby

from nats.js.errors import APIError

from lightningbus.bus.client import PUBLISH_SECONDS, Bus
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.spans import AttemptResult, SpanBatch
from lightningbus.schemas.tasks import Task

BATCH, NUM_AT_ONCE = 256, 32
"""Tasks that are read by one request, and deleted at once."""
READ_SECONDS = 10.0
TAKEN_BACK = "taken back by whoever published it"


async def take_back(bus: Bus, tasks: Iterable[Task]) -> int:
    """Delete these tasks from the bus and publish that each was given up; return how many were still there.

    A task that a runner has at this moment goes on there, and its result counts. Raises `BusError`.
    """
    num_deleted = 0
    by_subject = sorted(((subjects.task(task.mode, task.agent), task) for task in tasks), key=lambda pair: pair[0])
    for subject, pairs in groupby(by_subject, key=lambda pair: pair[0]):
        wanted = {ids.task_msg_id(ids.rollout_id(task.id, task.sample_index)): task for _, task in pairs}
        num_deleted += await _take_back_from(bus, subject, wanted)
    return num_deleted


async def _take_back_from(bus: Bus, subject: str, wanted: dict[str, Task]) -> int:
    num_deleted, since = 0, 0
    while True:
        request = {"batch": BATCH, "seq": since + 1, "next_by_subj": subject}
        async with batch_get(bus.nc, subjects.TASKS, request, READ_SECONDS) as messages:
            page = [
                (sequence_of(each), (each.headers or {}).get(subjects.MSG_ID_HEADER, "")) async for each in messages
            ]
        matches = [(sequence, wanted[msg_id]) for sequence, msg_id in page if msg_id in wanted]
        for start in range(0, len(matches), NUM_AT_ONCE):
            lot = matches[start : start + NUM_AT_ONCE]
            num_deleted += sum(await asyncio.gather(*(_give_up(bus, *each) for each in lot)))
        if not page:
            return num_deleted
        since = page[-1][0]


async def _give_up(bus: Bus, sequence: int, task: Task) -> bool:
    """Delete a task and publish its end; return whether it was there still."""
    try:
        await bus.js.delete_msg(subjects.TASKS, sequence)
    except APIError:  # A runner has finished the task since.
        return False
    rollout_id, now_ns = ids.rollout_id(task.id, task.sample_index), time.time_ns()
    execution_id = ids.execution_id(rollout_id, 1, TAKEN_BACK, now_ns)
    end = AttemptResult(outcome="preempted", error=TAKEN_BACK, num_spans=0, started_ns=now_ns, ended_ns=now_ns)
    batch = SpanBatch(
        run_id=task.run_id, task_id=task.id, rollout_id=rollout_id, sample_index=task.sample_index,
        group_size=task.group_size, attempt=1, execution_id=execution_id, agent=task.agent, mode=task.mode,
        evaluation=task.evaluation, runner="", sequence=0, spans=(), end=end,
    )  # fmt: skip
    msg_id = ids.batch_msg_id(execution_id, 0)
    await bus.publish(subjects.rollout(task.mode), batch, msg_id=msg_id, timeout=PUBLISH_SECONDS)
    return True
