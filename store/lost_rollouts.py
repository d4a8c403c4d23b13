"""Counts rollouts that the broker has settled and ClickHouse does not have."""

from dataclasses import dataclass
from datetime import datetime

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_DLQ, STORE_EVAL, STORE_TRAIN
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
"""Tasks that ended since a time: with a last attempt or a dead letter."""
END_CONSUMERS = (STORE_TRAIN, STORE_EVAL, STORE_DLQ)
"""Deliver the ends of rollouts; the store acknowledges what it has written."""


@dataclass(frozen=True, slots=True)
class SettledTasks:
    """Tasks that left the stream TASKS, by the broker's sequence numbers, and since when it counts."""

    count: int
    since_ns: int


async def read_settled(bus: Bus) -> SettledTasks:
    """Read the broker's count; raises nats' errors."""
    info = await bus.js.stream_info(subjects.TASKS)
    created = info.created.timestamp() if isinstance(info.created, datetime) else 0.0
    return SettledTasks(info.state.last_seq - info.state.messages, int(created * 1e9))


async def count_unwritten(bus: Bus) -> int:
    """Count messages about ends of rollouts that the store has yet to write, undelivered too; raises nats' errors."""
    infos = [await bus.js.consumer_info(consumer.stream, consumer.durable) for consumer in END_CONSUMERS]
    return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)


def count_finished(client: Client, since_ns: int) -> int:
    """Count finished tasks in ClickHouse; raises clickhouse-connect's errors, blocks."""
    return int(query_row(client, COUNT_FINISHED_TASKS, {"since": since_ns})[0])


class LostRolloutCounter:
    """Compares the two counts; messages on their way from the bus to ClickHouse are not lost."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus, self._client = bus, client
        self._previous = 0
        self.missing = 0
        """Tasks without an end in ClickHouse in two consecutive updates."""

    async def update(self) -> None:
        """Count again; raises nats' and clickhouse-connect's errors.

        In this order: a task is settled after its end was published, and its end is acknowledged after it was written.
        """
        settled = await read_settled(self._bus)
        unwritten = await count_unwritten(self._bus)
        finished = await run_in_daemon_thread(count_finished, self._client, settled.since_ns)
        now = max(0, settled.count - unwritten - finished)
        self.missing, self._previous = min(now, self._previous), now
