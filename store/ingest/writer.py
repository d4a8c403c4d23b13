"""Batches into ClickHouse: again and again while it is not well, around a row that it refuses, then acknowledged."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, DataError

from bus.client import Bus
from common.observability import metrics, tracing
from store.ingest.batch import Columns, Held, Types, columns_of
from store.ingest.settling import acknowledge, bury, extend

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 10.0)
RATE_SECONDS = 10.0
POISON_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 469})
"""ClickHouse's errors about a value: parsing, conversion, range, size, a constraint."""

Insert = Callable[[str, str, Any, dict[str, str]], int]
"""Writes an Arrow table: database, table, columns, ClickHouse's settings; returns how many rows ClickHouse reports to
have written. Raises ClickHouse's errors; blocks."""


class RowsMissing(Exception):
    """ClickHouse reports fewer rows than it was given, and no error."""


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
        """Insert, again and again if the database is not well, then acknowledge; a poison row is cut out by halves.

        Raises nothing that a batch or the database is to blame for.
        """
        deliveries = [held.delivery for held in batch]
        pause, longest = BACKOFF_SECONDS
        short = 0  # inserts of which rows were missing
        try:
            built = await columns
        except Exception as error:  # whatever it is: nothing but these messages has a part in it
            await self._isolate(batch, error)
            return
        while True:
            try:
                with metrics.insert_seconds.time(), tracing.span("insert"):
                    await asyncio.to_thread(self._insert, built, short)
                break
            except Exception as error:
                if is_poison(error):
                    self.problem = ""
                    await self._isolate(batch, error)
                    return
                metrics.insert_failures.inc()
                short += isinstance(error, RowsMissing)
                self.problem = _one_line(error)[:200]
                log.warning("not inserted, trying again in %.1f s: %s", pause, self.problem)
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            await extend(deliveries)
        self.problem = ""
        self._note(batch)
        with tracing.span("ack"):
            await acknowledge(deliveries)

    def _insert(self, columns: Columns, short: int) -> None:
        for table, found in columns.tables.items():
            # What stands twice in one insert is folded with all the rest, later. The answer comes after the write. What
            # was written in part is written again whole: under its first token ClickHouse would pass it over.
            token = f"{table}:{columns.token}" + (f":{short}" if short else "")
            how = {"insert_deduplication_token": token, "optimize_on_insert": "0", "async_insert": "0"}
            written = self._insert_columns(self._database, table, found, how)
            if written < found.num_rows:
                raise RowsMissing(f"ClickHouse wrote {written} of {found.num_rows} rows into {table}")

    async def _isolate(self, batch: Sequence[Held], error: Exception) -> None:
        if len(batch) == 1:
            await bury(self._bus, batch[0].delivery, f"not insertable: {_one_line(error)[:500]}")
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

    def insert(database: str, table: str, columns: Any, how: dict[str, str]) -> int:
        return client.insert_arrow(table, columns, database=database, settings=how).written_rows

    return insert


def is_poison(error: Exception) -> bool:
    """Whether an insert failed for a value in it, and not because the database is not well. Pure."""
    if isinstance(error, DatabaseError):
        return isinstance(error, DataError) or (getattr(error, "code", None) or 0) in POISON_CODES
    return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
