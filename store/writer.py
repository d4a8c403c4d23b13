"""Batches into ClickHouse: again and again while it is not well, around a row that it refuses, then acknowledged."""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, DataError
from nats.errors import Error as NatsError

from bus import Bus, metrics, tracing
from store.batch import Columns, Held, Types, columns_of

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 10.0)
RATE_SECONDS = 10.0
POISON_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321})
"""ClickHouse's errors about a value: parsing, conversion, range, size."""

Insert = Callable[[str, str, Any, dict[str, str]], None]
"""Writes an Arrow table: database, table, columns, ClickHouse's settings. Raises ClickHouse's errors; blocks."""


class Writer:
    """Writes one batch at a time."""

    def __init__(self, bus: Bus, insert: Insert, database: str, types: Types) -> None:
        self._bus, self._insert_columns, self._database, self._types = bus, insert, database, types
        self._written: deque[tuple[float, int]] = deque()  # when, and how many rows
        self.rows = 0
        self.problem = ""
        self.last_rollout = self.last_step = time.monotonic()
        """When a rollout, and a training step, was last written; in `time.monotonic`'s seconds."""

    def columns(self, batch: Sequence[Held]) -> "asyncio.Task[Columns]":
        """Begin to build a batch's columns, beside whatever is being written."""
        return asyncio.create_task(asyncio.to_thread(columns_of, batch, self._types))

    async def write(self, batch: Sequence[Held], columns: Awaitable[Columns]) -> None:
        """Insert, again and again if the database is not well, then acknowledge; a poison row is cut out by halves."""
        pause, longest = BACKOFF_SECONDS
        try:
            made = await columns
            while not await self._inserted(made, pause):
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
                with contextlib.suppress(NatsError):  # cut off from the bus: they will come again
                    for held in batch:
                        await held.delivery.in_progress()
        except (ClickHouseError, TypeError, ValueError, OverflowError, AttributeError) as error:
            await self._isolate(batch, error)
            return
        self._note(batch)
        with tracing.span("ack"):
            for held in batch:
                try:
                    await held.delivery.ack()
                except NatsError as error:
                    log.warning("inserted but not acknowledged, so it will come again: %s", error)

    async def _inserted(self, columns: Columns, pause: float) -> bool:
        """False: the database is not well; raises what says that a value is at fault."""
        try:
            with metrics.insert_seconds.time(), tracing.span("insert"):
                await asyncio.to_thread(self._insert, columns)
        except DataError:
            raise
        except (ClickHouseError, OSError) as error:
            if isinstance(error, DatabaseError) and _code(error) in POISON_CODES:
                raise
            metrics.insert_failures.inc()
            self.problem = " ".join(str(error).split())[:200] or type(error).__name__
            log.warning("not inserted, trying again in %.1f s: %s", pause, self.problem)
            return False
        self.problem = ""
        return True

    def _insert(self, columns: Columns) -> None:
        for table, found in columns.tables.items():
            # What stands twice in one insert is folded with all the rest, later.
            how = {"insert_deduplication_token": f"{table}:{columns.token}", "optimize_on_insert": "0"}
            self._insert_columns(self._database, table, found, how)

    async def _isolate(self, batch: Sequence[Held], error: Exception) -> None:
        if len(batch) == 1:
            await self._bus.bury(batch[0].delivery, f"not insertable: {' '.join(str(error).split())[:500]}")
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await self.write(half, self.columns(half))

    def _note(self, batch: Sequence[Held]) -> None:
        tables = Counter(table for held in batch for table, _ in held.rows)
        now, rows = time.monotonic(), tables.total()
        self.rows += rows
        for table, count in tables.items():
            metrics.store_rows.labels(table.removeprefix("raw_")).inc(count)
        metrics.store_bytes.inc(sum(len(held.delivery.data) for held in batch))
        self._written.append((now, rows))
        if "raw_attempts" in tables:
            self.last_rollout = now
        if "raw_training_steps" in tables:
            self.last_step = now

    def rate(self) -> float:
        """Rows per second, lately."""
        since = time.monotonic() - RATE_SECONDS
        while self._written and self._written[0][0] < since:
            self._written.popleft()
        return sum(rows for _, rows in self._written) / RATE_SECONDS


def by_client(client: Client) -> Insert:
    """Over HTTP."""

    def insert(database: str, table: str, columns: Any, how: dict[str, str]) -> None:
        client.insert_arrow(table, columns, database=database, settings=how)

    return insert


def _code(error: DatabaseError) -> int:
    code = getattr(error, "code", None)
    return int(code) if code is not None else 0
