"""Rows that ClickHouse does not take: they alone are dead letters, and a ClickHouse in trouble loses nothing."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.common.backoff import RetryPolicy
from lightningbus.schemas import subjects
from lightningbus.schemas.spans import Span, SpanBatch
from lightningbus.store.ingest import inserter, settling
from lightningbus.store.ingest.insert_errors import Cause, cause_of
from lightningbus.store.ingest.writer import insert_over_http
from tests.factories import SECOND_NS, START_NS, batches
from tests.store.conftest import StoreProcess, client, prepared
from tests.store.test_ingester import ingesting, publish, until, until_unacknowledged

MONTH_NS = 31 * 24 * 3600 * SECOND_NS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        yield built


@pytest.fixture
def store(served: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> StoreProcess:
    """One store for all tests of this module, emptied; tries follow each other quickly."""
    monkeypatch.setattr(inserter, "RETRY_POLICY", RetryPolicy(0.01, 0.02))
    monkeypatch.setattr(settling, "GIVE_BACK_SECONDS", 0.2)
    tables = served.sql.query("SELECT name FROM system.tables WHERE database = 'lightningbus' AND engine LIKE '%Tree'")
    for (table,) in tables.result_rows:
        if table != "migrations":
            served.sql.command(f"TRUNCATE TABLE {table}")
    return served


def with_spans(task: str, *spans: Span) -> SpanBatch:
    """A rollout of one model call and other spans."""
    (batch,) = batches(task, 0, parts=1)
    return replace(batch, spans=(*batch.spans, *spans))


def span(number: int, **fields: Any) -> Span:
    times = {"start_ns": START_NS, "end_ns": START_NS + SECOND_NS}
    return Span(**{"trace_id": "t", "span_id": f"s{number}", "name": f"tool {number}", **times, **fields})


def month(number: int) -> dict[str, int]:
    """Times of a span, each number another month of the last decades."""
    start = START_NS - number * MONTH_NS
    return {"start_ns": start, "end_ns": start + SECOND_NS}


async def send(bus: Bus, *sent: SpanBatch) -> None:
    for batch in sent:
        await bus.publish(subjects.rollout("eval"), batch, msg_id=f"{batch.task_id}:{batch.sequence}")


async def dead_letters(bus: Bus, store: StoreProcess, count: int) -> list[str]:
    """Reasons, once there are so many."""
    query = "SELECT uniqExact(sequence) FROM dead_letters"
    await asyncio.to_thread(store.until, query, count)
    return [row[0] for row in store.sql.query("SELECT reason FROM dead_letters ORDER BY sequence").result_rows]


def duplicates(store: StoreProcess) -> dict[str, int]:
    """Rows that lie in a table more often than once, whether or not its views fold them."""
    tables = {"raw_spans": "span_id", "raw_model_calls": "call", "raw_call_payloads": "call", "raw_attempts": "attempt"}
    sql = "SELECT count() - uniqExact(execution_id, {}) FROM {}"
    counted = {table: store.fetch_value(sql.format(column, table)) for table, column in tables.items()}
    return {table: count for table, count in counted.items() if count}


async def test_spans_of_more_months_than_an_insert_may_have_are_stored(bus: Bus, store: StoreProcess) -> None:
    """In one rollout, and in one insert of many rollouts; also where the rollouts' own times are months apart."""
    far = [replace(with_spans(f"far{number}", span(0, **month(number)))) for number in range(130)]
    old = []
    for number in range(130):
        (batch,) = batches(f"old{number}", 0, parts=1)
        end = batch.end and replace(batch.end, started_ns=month(number)["start_ns"])
        old.append(replace(batch, spans=tuple(replace(item, **month(number)) for item in batch.spans), end=end))
    await send(bus, with_spans("one", *(span(number, **month(number)) for number in range(120))), *far, *old)
    await publish(bus, 0, 3)
    async with ingesting(bus, store):
        await until(store, 264)
        await asyncio.to_thread(store.until, "SELECT count() FROM spans", 1 + 120 + 260 + 130 + 6)
        await asyncio.to_thread(store.until, "SELECT count() FROM model_calls", 1 + 260 + 6)
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 0


async def test_a_row_that_no_column_holds_costs_no_other_row_of_its_message(bus: Bus, store: StoreProcess) -> None:
    await publish(bus, 0, 3)
    await send(bus, with_spans("odd", span(0), span(1, start_ns=2**64 - 1, end_ns=2**64 - 1), span(2)))
    async with ingesting(bus, store):
        (reason,) = await dead_letters(bus, store, 1)
        await until(store, 4)
    assert reason.startswith("not insertable: a row of raw_spans: ")
    names = "SELECT groupArray(name) FROM (SELECT name FROM spans WHERE task_id = 'odd' ORDER BY name)"
    assert store.fetch_value(names) == ["chat", "tool 0", "tool 2"]
    assert store.fetch_value("SELECT length(response_ids) FROM completions WHERE task_id = 'odd'") == 3
    assert duplicates(store) == {}


@pytest.mark.parametrize("code", [9999, 252])
async def test_a_row_that_is_never_taken_is_a_dead_letter_whatever_the_code(
    bus: Bus, store: StoreProcess, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are stored once, in the tables too."""
    write, refused = insert_over_http(client(store.url)), Counter[str]()
    monkeypatch.setitem(inserter.PATIENCE, Cause.LOAD, 4)

    def insert(database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        if table == "raw_spans" and "tool 1" in columns.column("name").to_pylist():
            refused[table] += 1
            raise DatabaseError(f"Code: {code}. DB::Exception: it cannot be.", code=code)
        return write(database, table, columns, settings)

    await send(bus, with_spans("odd", span(0), span(1), span(2)))
    await publish(bus, 0, 6)
    async with ingesting(bus, store, insert) as (_, writer):
        (reason,) = await dead_letters(bus, store, 1)
        await until(store, 7)
        await asyncio.to_thread(store.until, "SELECT count() FROM spans WHERE task_id = 'odd'", 3)
        assert writer.problem == "" or writer.rows  # and it goes on
        await publish(bus, 10, 1)
        await until(store, 8)
    assert f"Code: {code}" in reason and "raw_spans" in reason
    assert store.fetch_value("SELECT count() FROM spans") == 3 + 14
    tables = {table: count for table, count in duplicates(store).items() if table != "raw_spans"}
    assert tables == {}, "of raw_spans, the row that showed that others are taken"


@pytest.mark.parametrize("code", [243, 241, 9999, None])
async def test_a_clickhouse_that_takes_nothing_for_long_loses_nothing(
    bus: Bus, store: StoreProcess, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = insert_over_http(client(store.url)), Counter[str]()
    monkeypatch.setitem(inserter.PATIENCE, Cause.LOAD, 4)

    def insert(database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        failures[table] += 1
        if failures[table] <= 60:
            raise DatabaseError(f"Code: {code}. DB::Exception: later.", code=code)
        return write(database, table, columns, settings)

    await publish(bus, 0, 5)
    async with ingesting(bus, store, insert):
        for view, count in (("rollouts", 5), ("spans", 10), ("model_calls", 10), ("completions", 10)):
            await asyncio.to_thread(store.until, f"SELECT count() FROM {view}", count)
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 0
    if cause_of(DatabaseError("", code=code)) is Cause.STATE:
        assert duplicates(store) == {}


@pytest.mark.parametrize("ends_at_probe", [False, True])
async def test_trouble_of_an_unknown_kind_after_good_inserts_loses_nothing(
    bus: Bus, store: StoreProcess, ends_at_probe: bool
) -> None:
    """Also where it ends between a try of the rows and the insert of a row that was taken before."""
    write, is_away, failures = insert_over_http(client(store.url)), asyncio.Event(), Counter[bool]()

    def insert(database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        is_probe = ":again:" in settings["insert_deduplication_token"]
        if table == "raw_attempts" and is_away.is_set():
            if failures.total() < 20 or is_probe is not ends_at_probe:
                failures[is_probe] += 1
                raise DatabaseError("Code: 9999. DB::Exception: nobody knows.", code=9999)
            is_away.clear()
        return write(database, table, columns, settings)

    async with ingesting(bus, store, insert) as (_, writer):
        await publish(bus, 0, 2)
        await until(store, 2)
        is_away.set()
        await send(bus, *batches("alone", 0, parts=1))
        await until(store, 3)
        await until_unacknowledged(bus, 0)
        assert writer.problem == ""
    assert failures[True] and failures[False]
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 0
    assert duplicates(store) == ({"raw_attempts": 1} if ends_at_probe else {}), "the row that was taken again"


async def test_a_message_of_rejected_rows_only_is_given_up_after_a_hundred(bus: Bus, store: StoreProcess) -> None:
    late = {"start_ns": 2**63, "end_ns": 2**63}
    await send(bus, with_spans("odd", *(span(number, **late) for number in range(300))))
    await publish(bus, 0, 1)
    async with ingesting(bus, store):
        (reason,) = await dead_letters(bus, store, 1)
        await until(store, 1)
    assert reason.count("a row of raw_spans") == 3 and reason.endswith(" more")


async def test_retention_counts_from_when_a_span_was_stored(bus: Bus, store: StoreProcess) -> None:
    """Agents say any time of their spans: before the day that a TTL can count from, and after it."""
    late = int(datetime(2150, 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS
    odd = [span(0, start_ns=0, end_ns=0), span(1, start_ns=late, end_ns=late), span(2)]
    await send(bus, with_spans("odd", *odd))
    async with ingesting(bus, store, retention_days=30):
        await asyncio.to_thread(store.until, "SELECT count() FROM spans WHERE name LIKE 'tool%'", 3)
    store.sql.command("OPTIMIZE TABLE raw_spans FINAL")
    assert store.fetch_value("SELECT count() FROM spans WHERE name LIKE 'tool%'") == 3


def test_the_cause_of_an_error() -> None:
    parts = "Code: 252. DB::Exception: Too many parts (1 with average size of 1 KiB) in table"
    months = "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100)."
    expected = [
        (DatabaseError(months, code=252), Cause.ROWS),
        (DatabaseError(parts, code=252), Cause.LOAD),
        (DatabaseError("Code: 53. DB::Exception: no", code=53), Cause.ROWS),
        (DatabaseError("Code: 243. DB::Exception: no space", code=243), Cause.STATE),
        (DatabaseError("Code: 60. DB::Exception: no table", code=60), Cause.STATE),
        (DatabaseError("Code: 4444. DB::Exception: new", code=4444), Cause.UNKNOWN),
        (DatabaseError("connection refused"), Cause.STATE),
        (OSError("no route"), Cause.STATE),
    ]
    assert [cause_of(error) for error, _ in expected] == [cause for _, cause in expected]
