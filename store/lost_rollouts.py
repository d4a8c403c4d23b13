"""Counts rollouts that the broker has settled and ClickHouse does not have."""

from dataclasses import dataclass
from datetime import datetime

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import GRADERS, STORE_DLQ, STORE_EVAL, STORE_TRAIN
from lightningbus.common.aio import run_in_daemon_thread
from lightningbus.schemas import subjects
from lightningbus.store.clickhouse.client import query_row

COUNT_FINISHED_TASKS = """
WITH finished AS (
    SELECT rollout_id, enqueued_at FROM raw_attempts
    WHERE resolution != 'retried' AND enqueued_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
)
SELECT uniqExact(rollout_id, enqueued_at) + (
    SELECT uniqExact(sequence) FROM raw_dead_letters
    WHERE stream = 'TASKS' AND dead_lettered_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
        AND headers['Nats-Msg-Id'] NOT IN (SELECT rollout_id FROM finished)
) FROM finished
"""
"""Query of the tasks that ended since a time: with a last attempt or a dead letter."""
END_CONSUMERS = (GRADERS, STORE_TRAIN, STORE_EVAL, STORE_DLQ)
"""Consumers that deliver the ends of rollouts; the store acknowledges what it has written.

What waits for its grade comes first: it leaves that queue after its end was published to the others.
"""
NOT_COMPARABLE = (
    "ClickHouse has tasks that the bus does not count; the bus is an older copy of itself, or another bus uses the "
    "database too"
)
"""The reason why the counts of broker and ClickHouse do not fit."""


@dataclass(frozen=True, slots=True)
class SettledTasks:
    """Number of tasks that left the stream TASKS, by the broker's sequence numbers, and the start of the count."""

    count: int
    num_published: int
    """All tasks that were ever on the stream."""
    since_ns: int


async def read_settled(bus: Bus) -> SettledTasks:
    """Ask the broker how many tasks have left their stream so far; raises nats' errors."""
    info = await bus.js.stream_info(subjects.TASKS)
    created = info.created.timestamp() if isinstance(info.created, datetime) else 0.0
    return SettledTasks(info.state.last_seq - info.state.messages, info.state.last_seq, int(created * 1e9))


async def count_unwritten(bus: Bus) -> int:
    """Count messages about ends of rollouts that the store has not written, delivered or not; raises nats' errors."""
    infos = [await bus.js.consumer_info(consumer.stream, consumer.durable) for consumer in END_CONSUMERS]
    return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)


def count_finished(client: Client, since_ns: int) -> int:
    """Count finished tasks in ClickHouse; blocks, and raises clickhouse-connect's errors."""
    return int(query_row(client, COUNT_FINISHED_TASKS, {"since": since_ns})[0])


class LostRolloutCounter:
    """Compares the counts of broker and ClickHouse; messages on their way between them are not lost.

    They cannot be compared on a bus that has come back as an older copy of itself, or beside another bus that uses the
    same database: ClickHouse then has tasks that this bus does not count, and so many losses would not be seen.
    """

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus, self._client = bus, client
        self._previous = 0
        self._last = SettledTasks(0, 0, 0)
        self.missing: int | None = 0
        """Tasks without an end in ClickHouse in two consecutive updates; None from when the counts do not fit on."""

    async def update(self) -> None:
        """Update the count; raises nats' and clickhouse-connect's errors.

        The order matters: a task is settled after its end was published, and its end is acknowledged after it was
        written. More tasks are published meanwhile, so what is published is read again.
        """
        settled = await read_settled(self._bus)
        unwritten = await count_unwritten(self._bus)
        finished = await run_in_daemon_thread(count_finished, self._client, settled.since_ns)
        latest = await read_settled(self._bus)
        is_of_same_stream = settled.since_ns == self._last.since_ns
        if not is_of_same_stream and self.missing is None:
            self.missing = self._previous = 0  # the stream was made again: the count begins again
        if finished > latest.num_published or (is_of_same_stream and settled.num_published < self._last.num_published):
            self.missing = None
        self._last = latest
        if self.missing is not None:
            now = max(0, settled.count - unwritten - finished)
            self.missing, self._previous = min(now, self._previous), now
