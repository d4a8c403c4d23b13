"""Inserts batches into ClickHouse, retries while it fails, cuts out rejected rows, then acknowledges."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, DataError

from bus.client import Bus
from common.aio import run_in_daemon_thread
from common.backoff import Backoff, RetryPolicy
from common.observability import metrics, tracing
from store.ingest.batch import ColumnTypes, DecodedMessage, InsertBatch, build_insert_batch
from store.ingest.row import Row
from store.ingest.settling import acknowledge, dead_letter, extend

log = logging.getLogger(__name__)

RETRY_POLICY = RetryPolicy(0.2, 10.0)
RATE_WINDOW_SECONDS = 10.0
MAX_FAILURE_CHARS = 200
POISON_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 469})
"""ClickHouse's errors about a value: parsing, conversion, range, size, a constraint."""

INSERT_SETTINGS = {
    "optimize_on_insert": "0",
    "async_insert": "0",
    # A crash can leave the rows in a table but not in the materialized view on it: a retry must write to the view too.
    "deduplicate_blocks_in_dependent_materialized_views": "1",
}
Insert = Callable[[str, str, Any, dict[str, str]], int]
"""Insert an Arrow table: database, table, columns, ClickHouse's settings; returns the number of rows that ClickHouse
reports as written. Raises ClickHouse's errors; blocks."""


class RowsMissingError(Exception):
    """ClickHouse reports fewer rows than were sent, and no error."""


class Writer:
    """Writes one batch at a time."""

    def __init__(self, bus: Bus, insert: Insert, database: str, types: ColumnTypes) -> None:
        self._bus, self._insert_columns, self._database, self._types = bus, insert, database, types
        self._written: deque[tuple[float, int]] = deque()  # (time, number of rows)
        self.rows = 0
        self.problem = ""
        self.last_rollout_at = self.started_at = time.monotonic()
        """When a rollout was last written; in `time.monotonic`'s seconds."""
        self.num_failed_attempts = 0
        """Attempts of training rollouts in a row that did not end well."""
        self.last_failure = ""
        """Outcome and error of the last of them."""
        self.last_step_at: dict[str, float] = {}
        """When a training step of a model was last written."""

    def start_building(self, batch: Sequence[DecodedMessage]) -> "asyncio.Task[InsertBatch]":
        """Start to build a batch while another is written."""
        return asyncio.create_task(asyncio.to_thread(build_insert_batch, batch, self._types))

    async def write(self, batch: Sequence[DecodedMessage], columns: Awaitable[InsertBatch]) -> None:
        """Insert with retries, then acknowledge; a poison row is found by bisection and dead-lettered.

        Errors of the batch and of the database are not raised.
        """
        deliveries = [message.delivery for message in batch]
        backoff = Backoff(RETRY_POLICY)
        num_short = 0  # inserts that wrote too few rows
        try:
            built = await columns
        except Exception as error:  # any error here is caused by these messages
            await self._bisect_poison_rows(batch, error)
            return
        while True:
            try:
                with metrics.insert_duration.time(), tracing.start_as_current_span("insert"):
                    await run_in_daemon_thread(self._insert, built, num_short)
                break
            except Exception as error:
                if is_poison(error):
                    self.problem = ""
                    await self._bisect_poison_rows(batch, error)
                    return
                metrics.insert_failures.inc()
                num_short += isinstance(error, RowsMissingError)
                self.problem = _one_line(error)[:200]
                delay = backoff.next_delay()
                log.warning("not inserted, trying again in %.1f s: %s", delay, self.problem)
            await asyncio.sleep(delay)
            await extend(deliveries)
        self.problem = ""
        self._record_success(built.rows, sum(len(delivery.data) for delivery in deliveries))
        with tracing.start_as_current_span("ack"):
            await acknowledge(deliveries)

    def _insert(self, columns: InsertBatch, num_short: int) -> None:
        for table, arrow_table in columns.tables.items():
            # Duplicate rows within one insert are merged later, with all others. The reply comes after the write. A
            # partial insert is repeated under a new token: ClickHouse would skip it under the first one.
            token = f"{table}:{columns.token}" + (f":{num_short}" if num_short else "")
            settings = {"insert_deduplication_token": token, **INSERT_SETTINGS}
            written = self._insert_columns(self._database, table, arrow_table, settings)
            if written < arrow_table.num_rows:
                raise RowsMissingError(f"ClickHouse wrote {written} of {arrow_table.num_rows} rows into {table}")

    async def _bisect_poison_rows(self, batch: Sequence[DecodedMessage], error: Exception) -> None:
        if len(batch) == 1:
            await dead_letter(self._bus, batch[0].delivery, f"not insertable: {_one_line(error)[:500]}")
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await self.write(half, self.start_building(half))

    def _record_success(self, rows: Mapping[str, Sequence[Row]], num_bytes: int) -> None:
        now, num_rows = time.monotonic(), sum(map(len, rows.values()))
        self.rows += num_rows
        for table, table_rows in rows.items():
            metrics.store_rows_inserted.labels(table.removeprefix("raw_")).inc(len(table_rows))
        metrics.store_bytes.inc(num_bytes)
        self._written.append((now, num_rows))
        if attempts := rows.get("raw_attempts", ()):
            self.last_rollout_at = now
            self._count_failures(attempts)
        self.last_step_at |= {row["model"]: now for row in rows.get("raw_training_steps", ())}

    def _count_failures(self, attempts: Iterable[Row]) -> None:
        for attempt in attempts:
            if attempt["mode"] != "train":
                continue
            if attempt["outcome"] == "ok":
                self.num_failed_attempts, self.last_failure = 0, ""
            else:
                self.num_failed_attempts += 1
                failure = ": ".join(filter(None, (attempt["outcome"], attempt["error"])))
                self.last_failure = " ".join(failure.split())[:MAX_FAILURE_CHARS]

    def rows_per_second(self) -> float:
        """Rows per second over the last ten seconds."""
        since = time.monotonic() - RATE_WINDOW_SECONDS
        while self._written and self._written[0][0] < since:
            self._written.popleft()
        return sum(rows for _, rows in self._written) / RATE_WINDOW_SECONDS


def insert_over_http(client: Client) -> Insert:
    """An `Insert` over HTTP."""

    def insert(database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        return client.insert_arrow(table, columns, database=database, settings=settings).written_rows

    return insert


def is_poison(error: Exception) -> bool:
    """Whether an insert failed because of a value in it, not because of the database. Pure."""
    if isinstance(error, DatabaseError):
        return isinstance(error, DataError) or (getattr(error, "code", None) or 0) in POISON_CODES
    return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
