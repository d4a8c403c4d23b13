"""Bus to ClickHouse: collect a batch, insert it, and only then acknowledge it."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, DataError
from nats.errors import Error as NatsError

from bus import STORE_DEAD, STORE_SPANS, STORE_WEIGHTS, Bus, Consumer, Delivery, PoisonLimit
from bus.cancelling import cancel
from schemas.codec import DecodeError
from store.rows import Row, rows_of
from store.settings import StoreSettings

log = logging.getLogger(__name__)

CONSUMERS = (STORE_SPANS, STORE_WEIGHTS, STORE_DEAD)
SLOTS = 256
"""Messages of one consumer held at once: what bounds memory, and how much is redelivered after a crash."""
BACKOFF_SECONDS = (0.2, 10.0)
POISON_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321})
"""ClickHouse's errors about a value: parsing, conversion, range, size."""


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery with its rows."""

    delivery: Delivery
    rows: tuple[tuple[str, Row], ...]


class Ingester:
    """Moves events into tables, for as long as it runs."""

    def __init__(self, bus: Bus, client: Client, settings: StoreSettings) -> None:
        self._bus, self._client, self._settings = bus, client, settings
        self._queue: asyncio.Queue[Held] = asyncio.Queue()
        self._poison = PoisonLimit("the store")
        self.last_rollout = self.last_step = time.monotonic()
        """When a rollout, and a training step, was last written; in `time.monotonic`'s seconds."""
        self.rows = 0
        self.pending = 0
        self.problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Ingest until asked to stop; what has been collected by then is still written."""
        async with AsyncExitStack() as stack:
            feeding: list[asyncio.Task[None]] = []
            for consumer in CONSUMERS:
                puller = await stack.enter_async_context(self._bus.pull(consumer, SLOTS))
                feeding.append(asyncio.create_task(self._feed(consumer, puller)))
            stopping = asyncio.create_task(stop.wait())
            work: set[asyncio.Task[Any]] = {*feeding, stopping}
            ended = asyncio.create_task(asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED))
            try:
                while not ended.done():
                    batch = await self._collect(ended)
                    if batch:
                        await self._write(batch)
                for task in feeding:
                    if task.done():
                        task.result()
            finally:
                await cancel(*work, ended)

    async def _feed(self, consumer: Consumer, puller: AsyncIterator[Delivery]) -> None:
        async for delivery in puller:
            if consumer is STORE_SPANS:
                self.pending = delivery.pending
            try:
                rows = tuple(rows_of(delivery.event(), delivery.sequence))
            except (DecodeError, ValueError, TypeError) as error:
                self._poison.bad(str(error))
                await self._bus.bury(delivery, str(error))
                continue
            self._poison.good()
            await self._queue.put(Held(delivery, rows))

    async def _collect(self, ended: asyncio.Future[Any]) -> list[Held]:
        """What has come until a batch is full or its first row has waited long enough."""
        first = asyncio.create_task(self._queue.get())
        await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            first.cancel()
            return []
        batch = [first.result()]
        count = len(batch[0].rows)
        try:
            async with asyncio.timeout(self._settings.batch_seconds):
                while count < self._settings.batch_rows:
                    held = await self._queue.get()
                    batch.append(held)
                    count += len(held.rows)
        except TimeoutError:
            pass
        return batch

    async def _write(self, batch: Sequence[Held]) -> None:
        """Insert, again and again if the database is not well, then acknowledge; a poison row is cut out by halves."""
        pause, longest = BACKOFF_SECONDS
        while True:
            try:
                await asyncio.to_thread(self._insert, batch)
                break
            except (DataError, TypeError, ValueError, OverflowError, AttributeError) as error:
                return await self._isolate(batch, error)
            except (ClickHouseError, OSError) as error:
                if isinstance(error, DatabaseError) and _code(error) in POISON_CODES:
                    return await self._isolate(batch, error)
                self.problem = " ".join(str(error).split())[:200] or type(error).__name__
                log.warning("not inserted, trying again in %.1f s: %s", pause, self.problem)
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            with contextlib.suppress(NatsError):  # cut off from the bus: they will come again
                for held in batch:
                    await held.delivery.in_progress()
        self.problem = ""
        self._note({table for held in batch for table, _ in held.rows})
        self.rows += sum(len(held.rows) for held in batch)
        for held in batch:
            try:
                await held.delivery.ack()
            except NatsError as error:
                log.warning("inserted but not acknowledged, so it will come again: %s", error)
        return None

    def _note(self, tables: set[str]) -> None:
        if "raw_attempts" in tables:
            self.last_rollout = time.monotonic()
        if "raw_training_steps" in tables:
            self.last_step = time.monotonic()

    async def _isolate(self, batch: Sequence[Held], error: Exception) -> None:
        if len(batch) == 1:
            await self._bus.bury(batch[0].delivery, f"not insertable: {' '.join(str(error).split())[:500]}")
            return
        middle = len(batch) // 2
        await self._write(batch[:middle])
        await self._write(batch[middle:])

    def _insert(self, batch: Sequence[Held]) -> None:
        tables: dict[str, list[Row]] = defaultdict(list)
        for held in batch:
            for table, row in held.rows:
                tables[table].append(row)
        token = deduplication_token(held.delivery for held in batch)
        for table, rows in tables.items():
            names = list(rows[0])
            self._client.insert(
                f"{self._settings.database}.{table}",
                [[row[name] for row in rows] for name in names],
                column_names=names,
                column_oriented=True,
                settings={"insert_deduplication_token": f"{table}:{token}"},
            )


def deduplication_token(deliveries: Iterable[Delivery]) -> str:
    """The same for the same set of messages, whatever their order: an insert repeated after a lost answer is one."""
    names = sorted(f"{delivery.stream}:{delivery.sequence}" for delivery in deliveries)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _code(error: DatabaseError) -> int:
    code = getattr(error, "code", None)
    return int(code) if code is not None else 0
