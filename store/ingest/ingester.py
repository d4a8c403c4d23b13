"""Bus to ClickHouse: a batch is inserted, the next is made into columns, a third is filled; then the broker waits."""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from bus.client import Bus
from bus.dlq_limit import PoisonLimit
from bus.message import Delivery
from bus.pull_consumer import Puller
from bus.streams import STORE_AUDIT, STORE_CONSUMERS, Consumer
from common.aio import cancel
from common.observability import metrics, tracing
from common.observability.faults import count_fault
from schemas.base import Event
from schemas.codec import DecodeError
from schemas.semconv import attributes
from schemas.signers import SIGNED_EVENTS
from store.ingest.audit import rows_of_advisory
from store.ingest.batch import Columns, Held
from store.ingest.rows import Received, rows_of
from store.ingest.settling import bury
from store.ingest.writer import Writer
from store.settings import StoreSettings

log = logging.getLogger(__name__)

SLOTS = (64, 8192)
"""Fewest and most messages of one consumer held at once, see `slots_for`."""
BATCHES = 3
"""One inserted, one made into columns, one filled."""
FORGOTTEN = 0.02
"""Share of the estimate of a message's size that gives way to each smaller message."""
COLLECT_AFTER = (200_000, 20, 50)


class Ingester:
    """Moves events into tables, for as long as it runs."""

    def __init__(self, bus: Bus, writer: Writer, settings: StoreSettings) -> None:
        self._bus, self._writer, self._settings = bus, writer, settings
        self._queue: asyncio.Queue[Held] = asyncio.Queue()
        self._waiting_rows = self._waiting_bytes = 0  # in the queue
        self._room = asyncio.Event()
        self._poison = PoisonLimit("the store")
        self._begun_ns = 0  # when the batch that is being filled got its first row
        self._pending = dict.fromkeys(STORE_CONSUMERS, 0)

    async def run(self, stop: asyncio.Event) -> None:
        """Ingest until asked to stop; what has been collected by then is still written."""
        # Rows by the ten thousand are no garbage, and none of them refers to itself: looking for cycles among them at
        # the interpreter's own pace took a third of the time.
        gc.set_threshold(*COLLECT_AFTER)
        self._room.set()
        async with AsyncExitStack() as stack:
            feeding: list[asyncio.Task[None]] = []
            for consumer in STORE_CONSUMERS:
                puller = await stack.enter_async_context(self._bus.pull(consumer, SLOTS[0]))
                feeding.append(asyncio.create_task(self._feed(consumer, puller)))
            stopping = asyncio.create_task(stop.wait())
            work: set[asyncio.Task[Any]] = {*feeding, stopping}
            ended = asyncio.create_task(asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED))
            try:
                await self._move(ended)
                for task in feeding:
                    if task.done():
                        task.result()
            finally:
                await cancel(*work, ended)

    async def _move(self, ended: asyncio.Future[Any]) -> None:
        writing: asyncio.Task[None] | None = None
        try:
            while not ended.done():
                batch = await self._collect(ended)
                if not batch:
                    break
                columns = self._writer.columns(batch)
                await asyncio.wait({columns})
                if writing is not None:
                    await writing
                writing = asyncio.create_task(self._write(batch, columns, self._begun_ns, time.time_ns()))
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                await cancel(writing)

    async def _write(
        self, batch: Sequence[Held], columns: Awaitable[Columns], begun_ns: int, collected_ns: int
    ) -> None:
        said = {attributes.MESSAGES: len(batch), attributes.ROWS: sum(len(held.rows) for held in batch)}
        with tracing.span("batch", said, started_ns=begun_ns):
            tracing.record("collect", begun_ns, collected_ns)
            await self._writer.write(batch, columns)

    async def _feed(self, consumer: Consumer, puller: Puller) -> None:
        size, slots = 0.0, SLOTS[0]
        async for delivery in puller:
            self._pending[consumer] = delivery.pending
            metrics.store_backlog.set(self.pending)
            size = max(len(delivery.data), (1 - FORGOTTEN) * size + FORGOTTEN * len(delivery.data))
            if abs((wanted := slots_for(size, self._settings.batch_bytes)) - slots) > slots // 4:
                slots = wanted
                puller.resize(slots)
            try:
                received = Received(delivery.sequence, delivery.timestamp_ns, self._settings.keep_days_of)
                recorded = consumer is STORE_AUDIT  # by nats-server, in a form of its own
                rows = tuple(rows_of_advisory(delivery.data) if recorded else rows_of(self._event(delivery), received))
            except Exception as error:  # else it would end the store again after every restart
                if not isinstance(error, (DecodeError, ValueError, TypeError)):
                    count_fault(f"message {delivery.stream}/{delivery.sequence}", error)
                self._poison.bad(str(error))
                await bury(self._bus, delivery, str(error) or type(error).__name__)
                continue
            self._poison.good()
            await self._room.wait()  # what comes once all batches are full stays with the broker
            self._queue.put_nowait(Held(delivery, rows))
            self._count(len(rows), len(delivery.data))

    def _event(self, delivery: Delivery) -> Event:
        """Raises `DecodeError`, or ValueError for a version or decision that nobody signed who may."""
        event = delivery.event()
        if isinstance(event, SIGNED_EVENTS):
            self._bus.signing.check(delivery.subject, event, delivery.data, delivery.headers, previous=0)
        return event

    def _count(self, rows: int, size: int) -> None:
        self._waiting_rows += rows
        self._waiting_bytes += size
        if self._waiting_rows < self._settings.batch_rows and self._waiting_bytes < self._settings.batch_bytes:
            self._room.set()
        else:
            self._room.clear()

    async def _collect(self, ended: asyncio.Future[Any]) -> list[Held]:
        """What has come until a batch is full or its first row has waited long enough."""
        first = asyncio.create_task(self._queue.get())
        await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            first.cancel()
            return []
        batch: list[Held] = []
        rows, size, self._begun_ns = 0, 0, time.time_ns()
        held = first.result()
        try:
            async with asyncio.timeout(self._settings.batch_seconds):
                while True:
                    batch.append(held)
                    rows, size = rows + len(held.rows), size + len(held.delivery.data)
                    self._count(-len(held.rows), -len(held.delivery.data))
                    if rows >= self._settings.batch_rows or size >= self._settings.batch_bytes:
                        break
                    held = self._queue.get_nowait() if self._queue.qsize() else await self._queue.get()
        except TimeoutError:
            pass
        return batch

    @property
    def pending(self) -> int:
        """Messages that the broker has not delivered yet, over all streams."""
        return sum(self._pending.values())

    @property
    def waiting(self) -> int:
        """Rows of the batch that is being filled."""
        return self._waiting_rows


def slots_for(message_bytes: float, batch_bytes: int) -> int:
    """How many messages of a size are held at once: all batches of them, within limits. Pure.

    It bounds memory, and how much is delivered again after a crash.
    """
    fewest, most = SLOTS
    return int(min(max(BATCHES * batch_bytes / max(message_bytes, 1.0), fewest), most))
