"""The store process: engine, HTTP interface, migrations, ingester."""

import asyncio
import contextlib
import logging
import math
from typing import Any, NamedTuple

from clickhouse_connect.driver.client import Client

from lightningbus.alerts.table import describe as describe_alert
from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.bus.streams.specs import STORE_CONSUMERS
from lightningbus.common.aio import WorkInterruptedError, cancel_and_wait, run_in_daemon_thread, run_unless
from lightningbus.common.flat_settings import without_secrets
from lightningbus.common.observability import metrics
from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse import probe as probing
from lightningbus.store.clickhouse.client import StoreUnavailableError, connect
from lightningbus.store.clickhouse.damaged_parts import describe_damage
from lightningbus.store.clickhouse.probe import ClickHouseProbe
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.ingest.batch import ColumnTypes, load_column_types
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.inserter import Insert
from lightningbus.store.ingest.writer import Writer, insert_over_http
from lightningbus.store.lost_rollouts import NOT_COMPARABLE, LostRolloutCounter
from lightningbus.store.rollout_retention import RolloutRetention
from lightningbus.store.settings import StoreSettings
from lightningbus.store.stall_detector import StallDetector
from lightningbus.store.training_bias import find_bias

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
COUNT_INTERVAL_SECONDS = 10.0
COMPARE_INTERVAL_SECONDS = 60.0


async def run(bus: Bus, settings: StoreSettings, stop: asyncio.Event) -> None:
    """Ingest and serve queries until ``stop`` is set.

    Raises `AddressInUseError`, `engine.EngineBusyError`, `client.StoreUnreachableError`,
    `migrations.MigrationError`, or `DlqLimitExceededError` when most events are unreadable.
    """
    if settings.url is not None:
        await _ingest(bus, settings, settings.url, stop)
        return
    async with serve_embedded(settings.data_dir, settings.host, settings.http_port, settings.allowed_hosts) as (
        engine,
        url,
    ):
        # The engine is in this process, so inserts skip HTTP.
        await _ingest(bus, settings, url, stop, engine.insert)


class Database(NamedTuple):
    """A database with all tables and views."""

    client: Client
    probe: ClickHouseProbe
    column_types: ColumnTypes


def _open_database(url: str, settings: StoreSettings) -> Database:
    """Migrate and connect; blocks. Raises `StoreUnreachableError`, `migrations.MigrationError`."""
    for name in migrations.migrate(connect(url, None), settings.database, None, settings.cluster):
        log.info("migration %s applied", name)
    client = connect(url, settings.database)
    migrations.create_views(client, settings.database, settings.cluster)
    if damage := describe_damage(client, settings.database):
        log.error("%s", damage)
    probe = ClickHouseProbe(connect(url, settings.database, probing.TIMEOUT_SECONDS), settings)
    return Database(client, probe, load_column_types(client, settings.database))


async def _open_with_retry(url: str, settings: StoreSettings, stop: asyncio.Event) -> Database | None:
    """Open the database as soon as ClickHouse answers; None if ``stop`` is set first."""
    while not stop.is_set():
        try:
            return await run_unless(stop.wait(), run_in_daemon_thread(_open_database, url, settings))
        except WorkInterruptedError:
            break
        except StoreUnavailableError as error:
            log.warning("%s; trying again", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await stop.wait()
    return None


async def _ingest(
    bus: Bus, settings: StoreSettings, url: str, stop: asyncio.Event, insert: Insert | None = None
) -> None:
    for consumer in STORE_CONSUMERS:
        await bus.ensure_consumer(consumer)
    database = await _open_with_retry(url, settings, stop)
    if database is None:
        return
    client, probe, column_types = database
    writer = Writer(bus, insert or insert_over_http(client), settings.database, column_types)
    ingester = Ingester(bus, writer, settings)
    lost_rollouts = LostRolloutCounter(bus, client)

    async def count_loop() -> None:
        """Count tasks that the broker has settled and ClickHouse does not have."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL_SECONDS)
            previous = lost_rollouts.missing
            try:
                await lost_rollouts.update()
            except Exception as error:
                log.warning("cannot count the missing rollouts: %s", error)
            metrics.rollouts_missing.set(math.nan if lost_rollouts.missing is None else lost_rollouts.missing)
            if lost_rollouts.missing is None:
                if previous is not None:
                    log.warning("lost rollouts cannot be counted any more: %s", NOT_COMPARABLE)
            elif lost_rollouts.missing > (previous or 0):
                log.error("%s", describe_alert("rollouts_missing", num_missing=lost_rollouts.missing))

    async def compare_loop() -> None:
        """Compare trained rollouts with dispatched ones, for ever."""
        while True:
            await asyncio.sleep(COMPARE_INTERVAL_SECONDS)
            try:
                stall_detector.training_bias = await run_in_daemon_thread(find_bias, client)
            except Exception as error:
                log.warning("cannot compare what is trained with what was dispatched: %s", error)

    def describe() -> dict[str, Any]:
        status: dict[str, Any] = {
            "rows": writer.rows,
            "rows_per_s": writer.rows_per_second(),
            "backlog": ingester.pending,
            "database": settings.database,
        }
        problem = writer.problem or ("" if probe.is_answering else "it does not answer")
        if problem:
            status["problem"] = problem
        if probe.disk_problem:
            status["disk"] = probe.disk_problem
        if lost_rollouts.missing != 0:
            status["missing"] = lost_rollouts.missing or "unknown"
        if stall_detector.alert:
            status |= {"alert": stall_detector.alert, "alerts": stall_detector.alerts}
        return {
            "state": "inserting" if not problem else "waiting",
            "address": without_secrets(url),
            "status": status,
        }

    name = default_instance_id(settings.id)
    log.info("SQL at %s, database %s", without_secrets(url), settings.database)
    async with bus.fleet("*") as fleet:
        stall_detector = StallDetector(bus, fleet, ingester, writer, settings)
        async with bus.heartbeat("store", name, describe):
            retention = RolloutRetention(bus)
            loops = (stall_detector.run(), probe.run(), count_loop(), compare_loop(), retention.run())
            background = [asyncio.create_task(loop) for loop in loops]
            try:
                await ingester.run(stop)
            finally:
                await cancel_and_wait(*background)
