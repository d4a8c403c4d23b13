"""ClickHouse cannot write: nothing is acknowledged that is not in its tables, and whoever asks learns why."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.fleet.readiness import not_ready_reason
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.schemas import subjects
from lightningbus.schemas.tasks import Task
from lightningbus.store.embedded.serving import writer_url
from lightningbus.store.lost_rollouts import LostRolloutCounter
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start, StoreProcess, client, full_disk
from tests.store.test_store import drained, send


async def publish(bus: Bus, name: str, count: int) -> None:
    for number in range(count):
        for part in batches(f"{name}-{number}", 0):
            await send(bus, part, f"{name}:{number}:{part.sequence}")


async def finish_tasks(bus: Bus, count: int, first: int = 0) -> None:
    """Publish tasks, send the spans of each, and acknowledge it, as a runner does."""
    tasks = [Task(id=f"t{first + number}", run_id="run", agent="default", input=1) for number in range(count)]
    for task in tasks:
        await TaskPublisher(bus).publish_task(task)
    runners = runner_consumer("default", "train")
    await bus.ensure_consumer(runners)
    async with bus.pull(runners, 4) as puller:
        for _ in tasks:
            message = await anext(puller)
            task = message.decode_as(Task)
            for part in batches(task.id, 0):
                end = part.end and msgspec.structs.replace(part.end, enqueued_ns=message.timestamp_ns)
                await send(bus, msgspec.structs.replace(part, end=end), f"{task.id}:{part.sequence}")
            await message.ack(sync=True)


async def beat_of(bus: Bus, state: str) -> dict[str, Any]:
    """What the store says of itself once it is in a state."""
    async with asyncio.timeout(HANG_SECONDS), bus.fleet("store") as stores:
        while not (status := [beat.status for beat in stores.members() if beat.state == state]):
            await stores.wait_for_change()
        return status[0]


async def unacknowledged(bus: Bus) -> int:
    info = await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, subjects.STORE)
    return int(info.num_ack_pending or 0) + int(info.num_pending or 0)


def writer(tmp_path: Path, store: StoreProcess) -> Client:
    return client(writer_url(tmp_path / "store", store.url))


async def test_a_full_disk_loses_no_rollout_and_the_store_says_so(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(start_store, nats_url, disk_mib=96)
    await publish(bus, "before", 3)
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 3)
    await drained(bus)
    with full_disk(store, tmp_path / "store"):
        await publish(bus, "amid", 20)
        detail = await beat_of(bus, "waiting")
        assert await unacknowledged(bus) == 40
    assert "space" in detail["problem"].lower()
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 23)
    await drained(bus)
    assert store.fetch_value("SELECT count() FROM model_calls") == 46


@pytest.mark.parametrize("table", ["raw_attempts", "raw_rollouts"])
async def test_too_many_parts_are_waited_out_and_nothing_is_acknowledged_before(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path, table: str
) -> None:
    """Also of a table that ClickHouse fills from another: a try after a failed one must write there too."""
    store = await asyncio.to_thread(start_store, nats_url)
    await publish(bus, "before", 1)
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 1)
    await drained(bus)
    sql = await asyncio.to_thread(writer, tmp_path, store)
    sql.command(f"SYSTEM STOP MERGES {table}")
    sql.command(f"ALTER TABLE {table} MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1000")
    await publish(bus, "amid", 5)
    assert "Too many parts" in (await beat_of(bus, "waiting"))["problem"]
    assert await unacknowledged(bus) == 10
    sql.command(f"ALTER TABLE {table} RESET SETTING parts_to_throw_insert, parts_to_delay_insert")
    for view in ("attempts", "rollouts"):
        await asyncio.to_thread(store.until, f"SELECT count() FROM {view}", 6)
    await drained(bus)


async def test_a_row_that_breaks_a_constraint_is_a_dead_letter_and_its_neighbours_are_rows(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    sql = await asyncio.to_thread(writer, tmp_path, store)
    sql.command("ALTER TABLE raw_attempts ADD CONSTRAINT other CHECK task_id != 'amid-3'")
    await publish(bus, "amid", 6)
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 5)
    await drained(bus)
    await asyncio.to_thread(store.until, "SELECT count() FROM dead_letters", 1)
    assert "is violated" in store.fetch_value("SELECT reason FROM dead_letters")


async def test_little_free_space_is_an_alert_and_the_store_is_not_ready(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    store = await asyncio.to_thread(start_store, nats_url, disk_mib=64, disk_free_mib=1000)
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE role = 'store' AND NOT resolved", 1)
    assert "MiB free, and 1000 are wanted" in store.fetch_value("SELECT reason FROM alerts")
    async with asyncio.timeout(HANG_SECONDS), bus.fleet("store") as stores:
        while not (beats := stores.members()):
            await stores.wait_for_change()
        assert beats[0].state == "inserting" and "the disk of the store" in not_ready_reason(beats[0])


async def test_rollouts_that_the_store_has_not_written_yet_are_not_missing(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    """What is delivered to the store waits in a full queue, in a batch or for the disk."""
    store = await asyncio.to_thread(start_store, nats_url, disk_mib=96)
    losses = LostRolloutCounter(bus, await asyncio.to_thread(client, store.url))
    with full_disk(store, tmp_path / "store"):
        await finish_tasks(bus, 4)
        await beat_of(bus, "waiting")
        assert await unacknowledged(bus) == 8
        for _ in range(2):
            await losses.update()
        assert losses.missing == 0
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 4)


@pytest.mark.long
async def test_rollouts_that_are_gone_from_clickhouse_are_counted_by_the_broker(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    await finish_tasks(bus, 4)
    store = await asyncio.to_thread(start_store, nats_url)
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 4)
    sql = await asyncio.to_thread(writer, tmp_path, store)
    losses = LostRolloutCounter(bus, sql)
    for _ in range(2):
        await losses.update()
    assert losses.missing == 0
    for table in ("raw_attempts", "raw_tasks"):  # with its tasks gone too, ClickHouse by itself misses nothing
        sql.command(f"ALTER TABLE {table} DELETE WHERE task_id IN ('t1', 't2') SETTINGS mutations_sync = 2")
    assert store.fetch_value("SELECT count() FROM check_unfinished_rollouts") == 0
    for _ in range(2):
        await losses.update()
    assert losses.missing == 2
    async with asyncio.timeout(HANG_SECONDS), bus.fleet("store") as stores:
        while not any(beat.status.get("missing") == 2 for beat in stores.members()):
            await stores.wait_for_change()


async def test_on_an_older_copy_of_the_bus_nobody_knows_how_many_rollouts_are_missing(
    start_store: Start, tmp_path: Path
) -> None:
    """ClickHouse has what came after the copy was made, and that would make up for as many losses."""
    async with nats_server(tmp_path / "bus") as server, Bus.connect(server.url) as bus:
        await bus.provision()
        await finish_tasks(bus, 2)
    shutil.copytree(tmp_path / "bus", tmp_path / "copy")
    async with nats_server(tmp_path / "bus") as server, Bus.connect(server.url) as bus:
        store = await asyncio.to_thread(start_store, server.url)
        losses = LostRolloutCounter(bus, await asyncio.to_thread(client, store.url))
        await finish_tasks(bus, 2, first=2)
        await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 4)
        for _ in range(2):
            await losses.update()
        assert losses.missing == 0
        async with nats_server(tmp_path / "copy") as copy, Bus.connect(copy.url) as copied:
            losses = LostRolloutCounter(copied, await asyncio.to_thread(client, store.url))
            await losses.update()
            assert losses.missing is None
            await finish_tasks(copied, 4, first=4)  # ClickHouse, which follows the other bus, does not get them
            for _ in range(2):
                await losses.update()
            assert losses.missing is None, "they are no proof that none is missing"
