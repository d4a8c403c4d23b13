"""The store process: engine, HTTP interface, migrations, ingester."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from bus import STORE_CONSUMERS, Bus, own_id
from bus.cancelling import cancel
from bus.doors import new_key, read_key, write_secret
from store import migrations
from store.batch import types_of
from store.client import StoreDown, connect, without_secrets
from store.door import KEY_FILE, WRITER
from store.engine import Engine
from store.http import HttpInterface
from store.ingester import Ingester
from store.settings import StoreSettings
from store.watchdog import Watchdog
from store.writer import Insert, Writer, by_client

log = logging.getLogger(__name__)

WRITERS_KEY = "key of the writer"
RETRY_SECONDS = 2.0
LOOK_SECONDS = 2.0


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
    silent = asyncio.Event()

    async def look() -> None:
        """Whether ClickHouse answers, for there may be nothing to insert."""
        while True:
            answers = await asyncio.to_thread(client.ping, LOOK_SECONDS)
            silent.clear() if answers else silent.set()
            await asyncio.sleep(LOOK_SECONDS)

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
        if watchdog.alarm:
            detail["alarm"] = watchdog.alarm
        return {
            "state": "inserting" if not problem else "waiting",
            "address": without_secrets(url),
            "detail": detail,
        }

    name = own_id(settings.id)
    log.info("SQL at %s, database %s", without_secrets(url), settings.database)
    async with bus.fleet("*") as fleet:
        watchdog = Watchdog(bus, fleet, ingester, writer, settings)
        async with bus.beat("store", name, describe):
            watching, looking = asyncio.create_task(watchdog.run()), asyncio.create_task(look())
            try:
                await ingester.run(stop)
            finally:
                await cancel(watching, looking)
