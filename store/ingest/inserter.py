"""Inserts batches into ClickHouse: waits while ClickHouse cannot write, and tells when the rows are at fault."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lightningbus.common.aio import run_in_daemon_thread
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.observability import metrics, tracing
from lightningbus.schemas.text import shorten_line
from lightningbus.store.ingest.batch import InsertBatch
from lightningbus.store.ingest.insert_errors import Cause, cause_of

log = logging.getLogger(__name__)

RETRY_POLICY = RetryPolicy(0.2, 10.0)
PATIENCE = {Cause.STATE: math.inf, Cause.LOAD: 30, Cause.UNKNOWN: 3}
"""Tries before rows are suspected, by the cause of the error: about five minutes of load, a second of the unknown."""
MAX_PROBLEM_CHARS = 200
MAX_REASON_CHARS = 500
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


@dataclass(frozen=True, slots=True)
class Rejection:
    """Reason why rows are not inserted; ``is_certain`` is false where ClickHouse itself may be at fault."""

    reason: str
    is_certain: bool = True

    @classmethod
    def of(cls, error: Exception, is_certain: bool = True) -> "Rejection":
        """Convert an error of the insert, or of building its columns."""
        return cls(shorten_line(_one_line(error), MAX_REASON_CHARS), is_certain)


class Inserter:
    """Inserts one batch at a time, table by table."""

    def __init__(self, insert: Insert, database: str) -> None:
        self._insert_columns, self._database = insert, database
        self._last_rows: dict[str, pa.Table] = {}  # one accepted row by table
        self.problem = ""
        """Reason why nothing is inserted now; empty while ClickHouse takes rows."""

    async def insert(self, batch: InsertBatch, written: set[str]) -> Rejection | None:
        """Insert a batch, except into the tables in ``written``; tables that take their rows are added there.

        Waits for a ClickHouse that cannot write, however long. Returns why the rows are rejected, if they are.
        """
        backoff = Backoff(RETRY_POLICY)
        num_tries = num_short = 0  # num_short: inserts that wrote too few rows
        takes_others = False  # whether the table took another row just before this try
        while True:
            try:
                with metrics.insert_duration.time(), tracing.start_as_current_span("insert"):
                    await run_in_daemon_thread(self._insert_tables, batch, written, num_short)
            except Exception as error:
                num_tries, num_short = num_tries + 1, num_short + isinstance(error, RowsMissingError)
                table = next_table(batch, written)
                if rejection := self._find_rejection(error, num_tries, table, takes_others):
                    return rejection
                is_suspect = num_tries >= PATIENCE[cause_of(error)]
                delay = backoff.next_delay()
                log.warning("not inserted, trying again in %.1f s: %s", delay, self.problem)
            else:
                self.problem = ""
                return None
            await asyncio.sleep(delay)
            takes_others = is_suspect and await self._can_insert(table)

    def _insert_tables(self, batch: InsertBatch, written: set[str], num_short: int) -> None:
        for table, columns in batch.tables.items():
            if table in written:
                continue
            # Duplicate rows within one insert are merged later, with all others. The reply comes after the write. A
            # partial insert is repeated under a new token: ClickHouse would skip it under the first one.
            token = f"{table}:{batch.token}" + (f":{num_short}" if num_short else "")
            num_written = self._insert(table, columns, token)
            if num_written < columns.num_rows:
                raise RowsMissingError(f"ClickHouse wrote {num_written} of {columns.num_rows} rows into {table}")
            written.add(table)
            self._last_rows[table] = columns.take([0])

    def _insert(self, table: str, columns: pa.Table, token: str) -> int:
        settings = {"insert_deduplication_token": token, **INSERT_SETTINGS}
        return self._insert_columns(self._database, table, columns, settings)

    def _find_rejection(self, error: Exception, num_tries: int, table: str, takes_others: bool) -> Rejection | None:
        cause = cause_of(error)
        if cause is Cause.ROWS:
            self.problem = ""
            return Rejection.of(error)
        metrics.insert_failures.inc()
        self.problem = shorten_line(_one_line(error), MAX_PROBLEM_CHARS)
        if num_tries < PATIENCE[cause]:
            return None
        if table not in self._last_rows:
            return Rejection.of(error, is_certain=False)
        return Rejection.of(error) if takes_others else None

    async def _can_insert(self, table: str) -> bool:
        """Return whether a table takes a row that it took before. It stays one row: tables fold equal identities."""
        token = f"{table}:again:{time.time_ns()}"
        try:
            await run_in_daemon_thread(self._insert, table, self._last_rows[table], token)
        except Exception as error:
            log.debug("%s takes no other row either: %s", table, error)
            return False
        return True


def next_table(batch: InsertBatch, written: set[str]) -> str:
    """Choose the table that a batch is inserted into next. Pure."""
    return next((table for table in batch.tables if table not in written), "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
