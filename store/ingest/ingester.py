"""Moves messages from the bus to ClickHouse in a pipeline of three batches: one filled, one built, one inserted."""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.dlq_limit import DlqLimit
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.jetstream.pull_consumer import PullConsumer
from lightningbus.bus.streams.specs import STORE_AUDIT, STORE_CONSUMERS, ConsumerSpec
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.observability.faults import count_fault
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.signers import SIGNED_EVENTS
from lightningbus.store.ingest.batch import DecodedMessage, InsertBatch
from lightningbus.store.ingest.rows.audit import build_audit_rows
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from lightningbus.store.ingest.settling import dead_letter
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.settings import StoreSettings

log = logging.getLogger(__name__)

IN_FLIGHT_BOUNDS = (64, 8192)
"""Fewest and most messages in flight of one consumer, see `in_flight_for`."""
PIPELINE_DEPTH = 3
"""Batches: one inserted, one built, one filled."""
SIZE_DECAY = 0.02
"""Weight of a smaller message in the moving estimate of the message size."""
LAST_WRITE_SECONDS = 10.0
"""Seconds that a stopping store waits for ClickHouse."""
GC_THRESHOLD = (200_000, 20, 50)


class Ingester:
    """Moves events into tables until stopped."""

    def __init__(self, bus: Bus, writer: Writer, settings: StoreSettings) -> None:
        self._bus, self._writer, self._settings = bus, writer, settings
        self._queue: asyncio.Queue[DecodedMessage | None] = asyncio.Queue()  # None: the last message, at a stop
        self._queued_rows = self._queued_bytes = 0  # in the queue
        self._has_capacity = asyncio.Event()
        self._poison_limit = DlqLimit("the store")
        self._batch_started_ns = 0  # when the batch that is being filled got its first row
        self._pending = dict.fromkeys(STORE_CONSUMERS, 0)

    async def run(self, stop: asyncio.Event) -> None:
        """Ingest until ``stop`` is set; a batch that is filled by then is still written, if ClickHouse answers."""
        # Rows hold no reference cycles: with the default thresholds the garbage collector took a third of the time.
        gc.set_threshold(*GC_THRESHOLD)
        self._has_capacity.set()
        async with AsyncExitStack() as stack:
            consume_tasks: list[asyncio.Task[None]] = []
            for consumer in STORE_CONSUMERS:
                puller = await stack.enter_async_context(self._bus.pull(consumer, IN_FLIGHT_BOUNDS[0]))
                consume_tasks.append(asyncio.create_task(self._consume(consumer, puller)))
            stopping = asyncio.create_task(stop.wait())
            work: set[asyncio.Task[Any]] = {*consume_tasks, stopping}
            finished = asyncio.create_task(asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED))
            finished.add_done_callback(lambda _: self._queue.put_nowait(None))
            try:
                await self._run_pipeline(finished)
                for task in consume_tasks:
                    if task.done():
                        task.result()
            finally:
                await cancel_and_wait(*work, finished)

    async def _run_pipeline(self, finished: asyncio.Future[Any]) -> None:
        write_task: asyncio.Task[None] | None = None
        try:
            while not finished.done():
                batch = await self._fill_batch()
                if not batch:
                    break
                columns = self._writer.start_building(batch)
                await asyncio.wait({columns})
                if write_task is not None and not await _wait_until_written(write_task, finished):
                    return
                write_task = asyncio.create_task(self._write(batch, columns, self._batch_started_ns, time.time_ns()))
            if write_task is not None:
                await _wait_until_written(write_task, finished)
        finally:
            if write_task is not None:
                await cancel_and_wait(write_task)

    async def _write(
        self, batch: Sequence[DecodedMessage], columns: Awaitable[InsertBatch], started_ns: int, filled_ns: int
    ) -> None:
        span_attributes = {
            attributes.MESSAGES: len(batch),
            attributes.ROWS: sum(len(decoded.rows) for decoded in batch),
        }
        with tracing.start_as_current_span("batch", span_attributes, started_ns=started_ns):
            tracing.record_span("collect", started_ns, filled_ns)
            await self._writer.write(batch, columns)

    async def _consume(self, consumer: ConsumerSpec, puller: PullConsumer) -> None:
        size, slots = 0.0, IN_FLIGHT_BOUNDS[0]
        async for message in puller:
            self._pending[consumer] = message.num_pending
            metrics.store_pending_messages.set(self.pending)
            size = max(len(message.data), (1 - SIZE_DECAY) * size + SIZE_DECAY * len(message.data))
            if abs((new_slots := in_flight_for(size, self._settings.batch_bytes)) - slots) > slots // 4:
                slots = new_slots
                puller.resize(slots)
            try:
                metadata = EventMetadata(message.sequence, message.timestamp_ns, self._settings.retention_days_of)
                is_advisory = consumer is STORE_AUDIT  # nats-server has its own format
                rows = tuple(
                    build_audit_rows(message.data) if is_advisory else build_rows(self._decode(message), metadata)
                )
            except Exception as error:  # otherwise the message would stop the store after every restart
                if not isinstance(error, (DecodeError, ValueError, TypeError)):
                    count_fault(f"message {message.stream}/{message.sequence}", error)
                self._poison_limit.record_invalid(str(error))
                await dead_letter(self._bus, message, str(error) or type(error).__name__)
                continue
            self._poison_limit.record_valid()
            await self._has_capacity.wait()  # while all batches are full, messages stay with the broker
            self._queue.put_nowait(DecodedMessage(message, rows))
            self._track_queue_size(len(rows), len(message.data))

    def _decode(self, message: Message) -> Event:
        """Decode an event; raise `DecodeError`, or ValueError for a version or decision without a valid signature."""
        event = message.event()
        if isinstance(event, SIGNED_EVENTS):
            self._bus.signing.check(message.subject, event, message.data, message.headers, previous=0)
        return event

    def _track_queue_size(self, rows: int, size: int) -> None:
        self._queued_rows += rows
        self._queued_bytes += size
        if self._queued_rows < self._settings.batch_rows and self._queued_bytes < self._settings.batch_bytes:
            self._has_capacity.set()
        else:
            self._has_capacity.clear()

    async def _fill_batch(self) -> list[DecodedMessage]:
        """Collect messages until a batch is full, its first row has waited long enough, or the store has to stop."""
        batch: list[DecodedMessage] = []
        rows, size = 0, 0
        decoded = await self._queue.get()
        self._batch_started_ns = time.time_ns()
        try:
            async with asyncio.timeout(self._settings.flush_interval_seconds):
                while decoded is not None:
                    batch.append(decoded)
                    rows, size = rows + len(decoded.rows), size + len(decoded.message.data)
                    self._track_queue_size(-len(decoded.rows), -len(decoded.message.data))
                    if rows >= self._settings.batch_rows or size >= self._settings.batch_bytes:
                        break
                    decoded = self._queue.get_nowait() if self._queue.qsize() else await self._queue.get()
        except TimeoutError:
            pass
        return batch

    @property
    def pending(self) -> int:
        """Messages that the broker has not delivered yet, over all streams."""
        return sum(self._pending.values())

    @property
    def waiting_rows(self) -> int:
        """Rows of the batch that is being filled."""
        return self._queued_rows


async def _wait_until_written(write_task: "asyncio.Task[None]", finished: "asyncio.Future[Any]") -> bool:
    """Wait for a write, at most `LAST_WRITE_SECONDS` after ``finished``; return whether it ended; raise its error."""
    await asyncio.wait({write_task, finished}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({write_task}, timeout=LAST_WRITE_SECONDS)
    if not write_task.done():
        log.warning("ClickHouse did not take the last batch within %.0f s: it stays on the bus", LAST_WRITE_SECONDS)
        return False
    write_task.result()
    return True


def in_flight_for(message_bytes: float, batch_bytes: int) -> int:
    """Count messages of a size that fill the whole pipeline, within bounds. Pure.

    It bounds memory, and redelivery after a crash.
    """
    minimum, maximum = IN_FLIGHT_BOUNDS
    return int(min(max(PIPELINE_DEPTH * batch_bytes / max(message_bytes, 1.0), minimum), maximum))
