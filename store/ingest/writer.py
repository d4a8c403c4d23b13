"""Writes batches into ClickHouse, halves rejected ones down to the rejected rows, and settles their messages."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.jetstream.message import Message
from lightningbus.common.observability import metrics, tracing
from lightningbus.schemas.text import shorten_line
from lightningbus.store.ingest.batch import ColumnTypes, DecodedMessage, InsertBatch, build_insert_batch
from lightningbus.store.ingest.inserter import Insert, Inserter, Rejection
from lightningbus.store.ingest.rows.row import Row
from lightningbus.store.ingest.settling import acknowledge, dead_letter, give_back, keep_extended

RATE_WINDOW_SECONDS = 10.0
MAX_FAILURE_CHARS = 200
MAX_REJECTED_ROWS = 100
"""Most rows of one message that are tried singly after a rejection; beyond it the rest is not tried."""
MAX_REASONS = 3
"""Rejected rows that the reason of a dead letter describes."""

T = TypeVar("T")


class Writer:
    """Writes one batch at a time."""

    def __init__(self, bus: Bus, insert: Insert, database: str, types: ColumnTypes) -> None:
        self._bus, self._types = bus, types
        self._inserter = Inserter(insert, database)
        self._written: deque[tuple[float, int]] = deque()  # (time, number of rows)
        self.rows = 0
        self.last_rollout_at = self.started_at = time.monotonic()
        """Time at which a rollout was last written, in `time.monotonic`'s seconds."""
        self.num_failed_attempts = 0
        """Attempts of training rollouts in a row that did not end well."""
        self.last_failure = ""
        """Outcome and error of the last of them."""
        self.last_step_at: dict[str, float] = {}
        """Times at which a training step was last written, by model."""

    @property
    def problem(self) -> str:
        """Reason why nothing is inserted now; empty while ClickHouse takes rows."""
        return self._inserter.problem

    def start_building(self, batch: Sequence[DecodedMessage]) -> "asyncio.Task[InsertBatch]":
        """Start to build a batch while another is written."""
        return asyncio.create_task(asyncio.to_thread(build_insert_batch, batch, self._types))

    async def write(self, batch: Sequence[DecodedMessage], columns: Awaitable[InsertBatch]) -> None:
        """Insert and acknowledge; a message with rejected rows becomes a dead letter, and its other rows are inserted.

        Waits for a ClickHouse that cannot write. Errors of the batch and of the database are not raised.
        """
        async with keep_extended([decoded.message for decoded in batch]):
            await self._write(batch, columns)

    async def _write(self, batch: Sequence[DecodedMessage], columns: Awaitable[InsertBatch]) -> None:
        written: set[str] = set()
        rejection = await self._insert(columns, written)
        if rejection is None:
            metrics.store_bytes.inc(sum(len(decoded.message.data) for decoded in batch))
            with tracing.start_as_current_span("ack"):
                await acknowledge(decoded.message for decoded in batch)
        elif len(batch) > 1:
            for half in halve([decoded.without(written) for decoded in batch]):
                await self._write(half, self.start_building(half))
        else:
            await self._settle_parts(batch[0].message, await self._insert_parts(batch[0].without(written), rejection))

    async def _insert_parts(self, decoded: DecodedMessage, rejection: Rejection) -> list[Rejection]:
        """Insert all rows of a rejected message that can be; why the others cannot."""
        if len(decoded.rows) < 2:
            tables = " and ".join(table for table, _ in decoded.rows)
            return [Rejection(f"a row of {tables}: {rejection.reason}", rejection.is_certain)]
        rejections: list[Rejection] = []
        for positions in halve(decoded.positions):
            if len(rejections) >= MAX_REJECTED_ROWS:
                return [*rejections, Rejection(f"{len(positions)} rows that were not tried")]
            part = decoded.select(positions)
            written: set[str] = set()
            if problem := await self._insert(self.start_building([part]), written):
                rejections += await self._insert_parts(part.without(written), problem)
        return rejections

    async def _settle_parts(self, message: Message, rejections: Sequence[Rejection]) -> None:
        """Settle a message whose rows were inserted one part after the other."""
        if not rejections:
            await acknowledge([message])
        elif all(rejection.is_certain for rejection in rejections):
            reasons = [rejection.reason for rejection in rejections[:MAX_REASONS]]
            more = [f"{len(rejections) - MAX_REASONS} more"] if len(rejections) > MAX_REASONS else []
            await dead_letter(self._bus, message, f"not insertable: {'; '.join([*reasons, *more])}")
        else:  # whether the rows are at fault shows once ClickHouse takes others
            await give_back(message)

    async def _insert(self, columns: Awaitable[InsertBatch], written: set[str]) -> Rejection | None:
        """Insert as `Inserter.insert`, and count the written rows."""
        try:
            built = await columns
        except Exception as error:  # any error here is caused by these rows
            return Rejection.of(error)
        rejection = await self._inserter.insert(built, written)
        self._count({table: rows for table, rows in built.rows.items() if table in written})
        return rejection

    def _count(self, rows: Mapping[str, Sequence[Row]]) -> None:
        now, num_rows = time.monotonic(), sum(map(len, rows.values()))
        self.rows += num_rows
        for table, table_rows in rows.items():
            metrics.store_rows_inserted.labels(table.removeprefix("raw_")).inc(len(table_rows))
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
                self.last_failure = shorten_line(failure, MAX_FAILURE_CHARS)

    def rows_per_second(self) -> float:
        """Measure rows per second over the last ten seconds."""
        since = time.monotonic() - RATE_WINDOW_SECONDS
        while self._written and self._written[0][0] < since:
            self._written.popleft()
        return sum(rows for _, rows in self._written) / RATE_WINDOW_SECONDS


def insert_over_http(client: Client) -> Insert:
    """Make an `Insert` over HTTP."""

    def insert(database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        return client.insert_arrow(table, columns, database=database, settings=settings).written_rows

    return insert


def halve(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Halve a list of at least two items. Pure."""
    middle = len(items) // 2
    return items[:middle], items[middle:]
