"""Batches in flight and filling, pulls that pause, several ingesters on one stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.js.api import ConsumerInfo

from lightningbus.bus.client import Bus
from lightningbus.common.observability import metrics
from lightningbus.learner.dispatch.decisions import build_selection, publish_selection, publish_without_signal
from lightningbus.learner.selection.difficulty import estimate_openness
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Outcome
from lightningbus.store.ingest import ingester as module
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.ingester import IN_FLIGHT_BOUNDS, Ingester, in_flight_for
from lightningbus.store.ingest.inserter import Insert
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.writer import Writer, insert_over_http
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_loading import TaskInput
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, client, prepared


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    with prepared(tmp_path / "store") as built:
        yield built


@asynccontextmanager
async def ingesting(
    bus: Bus, store: StoreProcess, insert: Insert | None = None, **settings: Any
) -> AsyncIterator[tuple[Ingester, Writer]]:
    stop = asyncio.Event()
    request = client(store.url)
    writer = Writer(
        bus, insert or insert_over_http(request), "lightningbus", load_column_types(request, "lightningbus")
    )
    ingester = Ingester(bus, writer, StoreSettings(**settings))
    work = asyncio.create_task(ingester.run(stop))
    try:
        yield ingester, writer
    finally:
        stop.set()
        await work


async def publish(bus: Bus, first: int, count: int) -> None:
    for number in range(first, first + count):
        for part in batches(f"t{number}", 0):
            await bus.publish(subjects.rollout("eval"), part, msg_id=f"{number}:{part.sequence}")


async def until(store: StoreProcess, count: int) -> None:
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", count)


async def until_unacknowledged(bus: Bus, count: int) -> None:
    """Rows are seen before their messages are acknowledged."""
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.js.consumer_info(subjects.EVAL_ROLLOUTS, subjects.STORE)).num_ack_pending != count:
            await asyncio.sleep(0.05)


async def test_several_share_a_stream_and_every_row_is_there_once(bus: Bus, store: StoreProcess) -> None:
    async with ingesting(bus, store, batch_rows=40) as (_, item), ingesting(bus, store, batch_rows=40) as (_, other):
        await publish(bus, 0, 300)
        await until(store, 300)
        await until_unacknowledged(bus, 0)  # the rows of other tables come after those of rollouts
    assert item.rows and other.rows
    assert store.fetch_value("SELECT count() FROM model_calls") == 600
    assert store.fetch_value("SELECT uniqExact(rollout_id, call) FROM model_calls") == 600


@pytest.mark.long
async def test_two_batches_wait_for_the_one_in_flight_and_no_more(bus: Bus, store: StoreProcess) -> None:
    """ClickHouse stands still: the broker keeps what does not fit, and nothing is lost when it goes on."""
    going, request = threading.Event(), threading.Event()
    write = insert_over_http(client(store.url))

    def insert(*arguments: Any) -> int:
        request.set()
        going.wait(HANG_SECONDS)
        return write(*arguments)

    async with ingesting(bus, store, insert, batch_rows=20, flush_interval_seconds=0.05) as (ingester, _):
        await publish(bus, 0, 200)
        await asyncio.to_thread(request.wait, HANG_SECONDS)
        async with asyncio.timeout(HANG_SECONDS):
            while ingester.waiting_rows < 20:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # in which it would take more
        assert ingester.waiting_rows <= 20 + 3, "rows of one more message at most"
        going.set()
        await until(store, 200)
    assert store.fetch_value("SELECT count() FROM spans") == 400


async def test_a_message_the_store_stumbles_over_is_a_dead_letter_and_the_store_goes_on(
    bus: Bus, store: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumbles(event: Any, received: Any) -> Any:
        if getattr(event, "task_id", "") == "t0":
            raise LookupError("a fault of ours")
        return build_rows(event, received)

    monkeypatch.setattr(module, "build_rows", stumbles)
    async with ingesting(bus, store):
        await publish(bus, 0, 2)
        await until(store, 1)
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.js.stream_info(subjects.DLQ)).state.messages < 2:
                await asyncio.sleep(0.02)
    assert store.fetch_value("SELECT any(task_id) FROM rollouts") == "t1"


def is_settled(consumer: ConsumerInfo) -> bool:
    return consumer.num_pending == 0 and consumer.num_ack_pending == 0


async def test_decisions_about_tasks_are_in_the_tables_once(bus: Bus, store: StoreProcess) -> None:
    """Selected by a real selector, and published again as after a restart, in another message."""
    rules = {"sampler": "difficulty", "replace_without_signal": True}
    fields = {"model_path": "m", "tasks": "t.jsonl", "run": "picked", "task_selection": rules}
    settings = LearnerSettings.model_validate(fields)
    selector, weights = TaskSelector([TaskInput("a", 1), TaskInput("b", 2)], settings), list[float]()
    async with ingesting(bus, store):
        for number in range(6):
            selection = await selector.select(number)
            assert selection is not None
            weights.append(selection.weight)
            task = f"{selection.task}@picked-g{number}"
            await publish_selection(bus, settings, task, selection)
            rewards = [1.0] * 8 if selection.task == "a" else [0.0, 1.0] * 4
            selector.add(selection.task, rewards)
            if selection.task == "a":
                await publish_without_signal(bus, settings, task, rewards)
        again = build_selection(settings, task, selection)
        await bus.publish(subjects.TASK_DECIDED, again, msg_id="another")
        async with asyncio.timeout(HANG_SECONDS):
            while not is_settled(await bus.js.consumer_info(subjects.EVENTS, subjects.STORE)):
                await asyncio.sleep(0.05)
    assert store.fetch_value("SELECT count() FROM task_decisions WHERE decision = 'selected'") == 6
    sql = "SELECT countIf(passed = 8 AND failed = 0 AND source_task = 'a') FROM task_decisions"
    num_without_signal = store.fetch_value(f"{sql} WHERE decision = 'without_signal'")
    assert num_without_signal == store.fetch_value(
        "SELECT count() FROM task_decisions WHERE decision = 'selected' AND source_task = 'a'"
    )
    assert 0 < num_without_signal <= 3
    sql = "SELECT {}(weight) FROM task_decisions WHERE decision = 'selected'"
    assert [store.fetch_value(sql.format(name)) for name in ("min", "max")] == [min(weights), max(weights)]
    assert min(weights) < max(weights) == estimate_openness(0, 0)


def test_fewer_messages_are_held_the_larger_they_are() -> None:
    assert in_flight_for(1000, 16_000_000) == IN_FLIGHT_BOUNDS[1]
    assert in_flight_for(100_000, 16_000_000) == 480
    assert in_flight_for(4_000_000, 16_000_000) == IN_FLIGHT_BOUNDS[0]
    assert in_flight_for(0, 16_000_000) == IN_FLIGHT_BOUNDS[1]


@pytest.mark.parametrize("fault", [RuntimeError("the disk hums"), KeyError("raw_spans"), OSError("no route")])
async def test_an_error_of_the_insert_nobody_foresaw_is_counted_and_the_batch_tried_again(
    bus: Bus, store: StoreProcess, fault: Exception
) -> None:
    write, faults = insert_over_http(client(store.url)), [fault, fault]
    before = metrics.insert_failures._value.get()

    def insert(*arguments: Any) -> int:
        if faults:
            raise faults.pop()
        return write(*arguments)

    async with ingesting(bus, store, insert):
        await publish(bus, 0, 3)
        await until(store, 3)
    assert metrics.insert_failures._value.get() == before + 2
    assert store.fetch_value("SELECT count() FROM model_calls") == 6


async def test_rows_that_clickhouse_does_not_count_as_written_are_not_acknowledged(
    bus: Bus, store: StoreProcess
) -> None:
    write, swallowed = insert_over_http(client(store.url)), [1, 2]

    def insert(database: str, table: str, columns: Any, how: dict[str, str]) -> int:
        is_short = table != "raw_audit_log" and bool(swallowed)  # the audit log is written on its own time
        return write(database, table, columns.slice(swallowed.pop()) if is_short else columns, how)

    async with ingesting(bus, store, insert) as (_, writer):
        await publish(bus, 0, 3)
        await asyncio.to_thread(store.until, "SELECT count() FROM spans", 6)
        await asyncio.to_thread(store.until, "SELECT count() FROM model_calls", 6)
        await until_unacknowledged(bus, 0)
        assert writer.problem == "" and not swallowed


async def test_failed_attempts_of_training_are_counted_until_one_ends_well(bus: Bus, store: StoreProcess) -> None:
    async def publish_train(name: str, outcome: Outcome) -> None:
        for part in batches(name, 0, outcome=outcome):
            await bus.publish(subjects.rollout("train"), part, msg_id=f"{name}:{part.sequence}")

    async def until_counted(writer: Writer, count: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while writer.num_failed_attempts != count:
                await asyncio.sleep(0.05)

    async with ingesting(bus, store) as (_, writer):
        for number in range(3):
            await publish_train(f"failed{number}", "agent_error")
        await until_counted(writer, 3)
        assert writer.last_failure == "agent_error"
        await publish_train("good", "ok")
        await until_counted(writer, 0)
        assert writer.last_failure == ""


@pytest.mark.long
async def test_poison_that_cannot_be_buried_now_does_not_end_the_ingester(bus: Bus, store: StoreProcess) -> None:
    await bus.js.delete_stream(subjects.DLQ)
    async with ingesting(bus, store):
        await bus.js.publish(subjects.rollout("eval"), b"\xc1 no event")
        await publish(bus, 0, 2)
        await until(store, 2)
        await until_unacknowledged(bus, 1)  # it comes again


async def test_thirty_rows_no_column_holds_are_dead_letters_and_the_rest_is_written(
    bus: Bus, store: StoreProcess
) -> None:
    for number in range(30):
        (batch,) = batches(f"bad{number}", 0, parts=1)
        await bus.publish(subjects.rollout("eval"), msgspec.structs.replace(batch, attempt=70_000), msg_id=f"b{number}")
    await publish(bus, 0, 3)
    async with ingesting(bus, store):
        await until(store, 3)
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.js.stream_info(subjects.DLQ)).state.messages < 30:
                await asyncio.sleep(0.05)
