"""Counts rollouts that the broker has settled and ClickHouse does not have."""

import asyncio
from dataclasses import dataclass
from datetime import datetime

from clickhouse_connect.driver.client import Client

from bus.client import Bus
from schemas import subjects
from store.clickhouse.client import query_row

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


@dataclass(frozen=True, slots=True)
class SettledTasks:
    """Tasks that left the stream TASKS, by the broker's sequence numbers, and since when it counts."""

    count: int
    since_ns: int


async def read_settled(bus: Bus) -> SettledTasks:
    """The broker's count now; raises nats' errors."""
    info = await bus.js.stream_info(subjects.TASKS)
    created = info.created.timestamp() if isinstance(info.created, datetime) else 0.0
    return SettledTasks(info.state.last_seq - info.state.messages, int(created * 1e9))


def count_finished(client: Client, since_ns: int) -> int:
    """Finished tasks in ClickHouse; raises clickhouse-connect's errors, blocks."""
    return int(query_row(client, COUNT_FINISHED_TASKS, {"since": since_ns})[0])


class LostRolloutCounter:
    """Compares the two counts; messages on their way from the bus to ClickHouse are not lost."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus, self._client = bus, client
        self._previous = 0
        self.missing = 0
        """Tasks without an end in ClickHouse in two consecutive updates."""

    async def update(self, waiting: int) -> None:
        """Count again; ``waiting`` messages are not written yet. Raises nats' and clickhouse-connect's errors."""
        settled = await read_settled(self._bus)
        finished = await asyncio.to_thread(count_finished, self._client, settled.since_ns)
        now = max(0, settled.count - finished - waiting)
        self.missing, self._previous = min(now, self._previous), now
