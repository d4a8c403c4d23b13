"""The store process: engine, HTTP interface, migrations, ingester."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from bus.client import Bus
from bus.fleet.heartbeats import own_id
from bus.security.secrets import new_key, read_key, write_secret
from bus.streams import STORE_CONSUMERS
from common import disk_space
from common.aio import cancel
from common.observability import metrics
from store.clickhouse import migrations
from store.clickhouse.client import StoreDown, connect, first, without_secrets
from store.embedded.engine import Engine
from store.embedded.http_interface import HttpInterface
from store.embedded.readonly_guard import KEY_FILE, WRITER
from store.ingest.batch import types_of
from store.ingest.ingester import Ingester
from store.ingest.writer import Insert, Writer, by_client
from store.lost_rollouts import Losses
from store.settings import StoreSettings
from store.stall_detector import Watchdog

log = logging.getLogger(__name__)

WRITERS_KEY = "key of the writer"
RETRY_SECONDS = 2.0
LOOK_SECONDS = 2.0
COUNT_SECONDS = 10.0


async def run(bus: Bus, settings: StoreSettings, stop: asyncio.Event) -> None:
    """Ingest and answer until asked to stop.

    Raises `http.PortInUse`, `engine.EngineBusy`, `client.StoreUnreachable`, `migrations.MigrationError`, or
    `bus.PoisonFlood` when most events are unreadable.
    """
    if settings.url is not None:
        await _ingest(bus, settings, settings.url, stop)
        return
    async with served(settings.path, settings.host, settings.http_port, settings.names) as (engine, url):
        # Its own engine is in this process: columns need not travel to it.
        await _ingest(bus, settings, url, stop, engine.insert)


@asynccontextmanager
async def embedded(path: Path, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The embedded engine of a directory behind ClickHouse's HTTP interface, while the block runs.

    Yields the URL of its readers; raises `engine.EngineBusy`.
    """
    async with served(path, host, port) as (_, url):
        yield without_secrets(url)


@asynccontextmanager
async def served(
    path: Path, host: str = "127.0.0.1", port: int = 0, names: Collection[str] = ()
) -> AsyncIterator[tuple[Engine, str]]:
    """`embedded`, but yields the engine itself and the URL of its writer, whose key lies in the directory."""
    engine = await asyncio.to_thread(Engine, path)
    try:
        if not (path / KEY_FILE).exists():
            write_secret(path / KEY_FILE, new_key())
        async with HttpInterface(engine, host, port, read_key(path / KEY_FILE, WRITERS_KEY), names) as interface:
            yield engine, writer_url(path, interface.url)
    finally:
        await asyncio.to_thread(engine.close)


def writer_url(path: Path, url: str) -> str:
    """The URL of an embedded engine for who may write, by the key in its directory; raises `bus.AccessError`."""
    return url.replace("://", f"://{WRITER}:{read_key(path / KEY_FILE, WRITERS_KEY)}@", 1)


async def _reached(url: str, stop: asyncio.Event) -> Client | None:
    """A client once ClickHouse answers, however long that takes; None: asked to stop meanwhile."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(connect, url, None)
        except StoreDown as error:
            log.warning("%s; trying again", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await stop.wait()
    return None


async def _ingest(
    bus: Bus, settings: StoreSettings, url: str, stop: asyncio.Event, insert: Insert | None = None
) -> None:
    for consumer in STORE_CONSUMERS:
        await bus.ensure(consumer)
    bare = await _reached(url, stop)
    if bare is None:
        return
    for name in await asyncio.to_thread(migrations.migrate, bare, settings.database, None, settings.cluster):
        log.info("migration %s applied", name)
    client = await asyncio.to_thread(connect, url, settings.database)
    await asyncio.to_thread(migrations.make_views, client, settings.database, settings.cluster)
    types = await asyncio.to_thread(types_of, client, settings.database)
    writer = Writer(bus, insert or by_client(client), settings.database, types)
    ingester = Ingester(bus, writer, settings)
    silent, losses, short = asyncio.Event(), Losses(bus, client), ""

    async def look() -> None:
        """Whether ClickHouse answers and has room, for there may be nothing to insert."""
        nonlocal short
        while True:
            answers = await asyncio.to_thread(client.ping, LOOK_SECONDS)
            silent.clear() if answers else silent.set()
            try:
                free = await asyncio.to_thread(_free_bytes, settings, client)
                short = disk_space.note_free("store", free, settings.disk_free_mib)
            except (OSError, ClickHouseError) as error:
                log.debug("free space is not known: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def count() -> None:
        """What the broker counts as settled and ClickHouse does not have."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            before = losses.missing
            try:
                await losses.look(ingester.pending + ingester.waiting)
            except Exception as error:
                log.warning("what is missing is not known: %s", error)
            metrics.rollouts_missing.set(losses.missing)
            if losses.missing > before:
                log.error("%d tasks that the bus has settled have no end in ClickHouse", losses.missing)

    def describe() -> dict[str, Any]:
        detail: dict[str, Any] = {
            "rows": writer.rows,
            "rows_per_s": writer.rate(),
            "backlog": ingester.pending,
            "database": settings.database,
        }
        problem = writer.problem or ("it does not answer" if silent.is_set() else "")
        if problem:
            detail["problem"] = problem
        if short:
            detail["disk"] = short
        if losses.missing:
            detail["missing"] = losses.missing
        if watchdog.alarm:
            detail["alarm"] = watchdog.alarm
        return {
            "state": "inserting" if not problem else "waiting",
            "address": without_secrets(url),
            "status": detail,
        }

    name = own_id(settings.id)
    log.info("SQL at %s, database %s", without_secrets(url), settings.database)
    async with bus.fleet("*") as fleet:
        watchdog = Watchdog(bus, fleet, ingester, writer, settings)
        async with bus.beat("store", name, describe):
            beside = [asyncio.create_task(part) for part in (watchdog.run(), look(), count())]
            try:
                await ingester.run(stop)
            finally:
                await cancel(*beside)


def _free_bytes(settings: StoreSettings, client: Client) -> int:
    """Where ClickHouse writes; raises OSError or ClickHouse's errors."""
    if settings.url is None:
        return disk_space.free_bytes(settings.path)
    return int(first(client, "SELECT min(free_space) FROM system.disks")[0])
