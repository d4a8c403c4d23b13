"""Bus to ClickHouse: while one batch is inserted the next is filled; only what is inserted is acknowledged."""

import asyncio
import contextlib
import gc
import hashlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, DataError
from nats.errors import Error as NatsError

from bus import STORE_DEAD, STORE_SPANS, STORE_WEIGHTS, Bus, Consumer, Delivery, PoisonLimit, Puller
from bus.cancelling import cancel
from schemas.codec import DecodeError
from store import arrow
from store.rows import Received, Row, rows_of
from store.settings import StoreSettings

log = logging.getLogger(__name__)

CONSUMERS = (STORE_SPANS, STORE_WEIGHTS, STORE_DEAD)
SLOTS = (64, 8192)
"""Fewest and most messages of one consumer held at once, see `slots_for`."""
FORGOTTEN = 0.02
"""Share of the estimate of a message's size that gives way to each smaller message."""
RATE_SECONDS = 10.0
COLLECT_AFTER = (200_000, 20, 50)
BACKOFF_SECONDS = (0.2, 10.0)
POISON_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321})
"""ClickHouse's errors about a value: parsing, conversion, range, size."""


Insert = Callable[[str, str, Any, dict[str, str]], None]
"""Writes an Arrow table: database, table, columns, ClickHouse's settings. Raises ClickHouse's errors; blocks."""


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery with its rows."""

    delivery: Delivery
    rows: tuple[tuple[str, Row], ...]


class Ingester:
    """Moves events into tables, for as long as it runs."""

    def __init__(self, bus: Bus, client: Client, settings: StoreSettings, insert: Insert | None = None) -> None:
        """``insert`` writes columns; by default over ``client``'s connection."""
        self._bus, self._client, self._settings = bus, client, settings
        self._insert_columns = insert or by_client(client)
        self._types: dict[str, dict[str, str]] = {}
        self._queue: asyncio.Queue[Held] = asyncio.Queue()
        self._waiting_rows = self._waiting_bytes = 0  # in the queue
        self._room = asyncio.Event()
        self._written: deque[tuple[float, int]] = deque()  # when, and how many rows
        self._poison = PoisonLimit("the store")
        self.last_rollout = self.last_step = time.monotonic()
        """When a rollout, and a training step, was last written; in `time.monotonic`'s seconds."""
        self.rows = 0
        self.pending = 0
        self.problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Ingest until asked to stop; what has been collected by then is still written."""
        # Rows by the ten thousand are no garbage, and none of them refers to itself: looking for cycles among them at
        # the interpreter's own pace took a third of the time.
        gc.set_threshold(*COLLECT_AFTER)
        self._types = await asyncio.to_thread(types_of, self._client, self._settings.database)
        self._room.set()
        async with AsyncExitStack() as stack:
            feeding: list[asyncio.Task[None]] = []
            for consumer in CONSUMERS:
                puller = await stack.enter_async_context(self._bus.pull(consumer, SLOTS[0]))
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

    async def _feed(self, consumer: Consumer, puller: Puller) -> None:
        size, slots = 0.0, SLOTS[0]
        async for delivery in puller:
            if consumer is STORE_SPANS:
                self.pending = delivery.pending
            size = max(len(delivery.data), (1 - FORGOTTEN) * size + FORGOTTEN * len(delivery.data))
            if abs((wanted := slots_for(size, self._settings.batch_bytes)) - slots) > slots // 4:
                slots = wanted
                puller.resize(slots)
            try:
                received = Received(delivery.sequence, delivery.timestamp_ns, self._settings.keep_days_of)
                rows = tuple(rows_of(delivery.event(), received))
            except (DecodeError, ValueError, TypeError) as error:
                self._poison.bad(str(error))
                await self._bus.bury(delivery, str(error))
                continue
            self._poison.good()
            await self._room.wait()  # one batch is in flight and the next is full: what comes stays with the broker
            self._queue.put_nowait(Held(delivery, rows))
            self._count(len(rows), len(delivery.data))

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
        rows = size = 0
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
        rows = sum(len(held.rows) for held in batch)
        self.rows += rows
        self._written.append((time.monotonic(), rows))
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
            # What stands twice in one insert is folded with all the rest, later.
            how = {"insert_deduplication_token": f"{table}:{token}", "optimize_on_insert": "0"}
            self._insert_columns(self._settings.database, table, arrow.table(rows, self._types[table]), how)

    @property
    def waiting(self) -> int:
        """Rows of the batch that is being filled."""
        return self._waiting_rows

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


def slots_for(message_bytes: float, batch_bytes: int) -> int:
    """How many messages of a size are held at once: two batches of them, within limits. Pure.

    It bounds memory, and how much is delivered again after a crash.
    """
    fewest, most = SLOTS
    return int(min(max(2 * batch_bytes / max(message_bytes, 1.0), fewest), most))


def types_of(client: Client, database: str) -> dict[str, dict[str, str]]:
    """ClickHouse's type of every column, by table."""
    sql = (
        "SELECT table, name, type FROM system.columns WHERE database = {database:String} AND startsWith(table, 'raw_')"
    )
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, column, kind in client.query(sql, parameters={"database": database}).result_rows:
        found[name][column] = kind
    return dict(found)


def deduplication_token(deliveries: Iterable[Delivery]) -> str:
    """The same for the same set of messages, whatever their order: an insert repeated after a lost answer is one."""
    names = sorted(f"{delivery.stream}:{delivery.sequence}" for delivery in deliveries)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _code(error: DatabaseError) -> int:
    code = getattr(error, "code", None)
    return int(code) if code is not None else 0
