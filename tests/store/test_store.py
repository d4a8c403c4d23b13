"""The store process against a real broker: insert, then ack; what comes twice is one row; poison stops nobody."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.codec import schema_of
from lightningbus.schemas.spans import AttemptResult, SpanBatch
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.trajectory.attempt_selection import select_attempt
from lightningbus.schemas.weights.events import SwapLockState, WeightsActivated
from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse.migrations import Migration, MigrationError, migrate
from lightningbus.store.embedded.serving import writer_url
from lightningbus.store.ingest.batch import deduplication_token
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start, client


async def send(bus: Bus, batch: SpanBatch, msg_id: str) -> None:
    await bus.publish(subjects.rollout(batch.mode), batch, msg_id=msg_id)


async def drained(bus: Bus) -> None:
    """Wait until the store has acknowledged everything: only then is a row in all views of its table.

    What is pending of a durable lags behind what its stream has stored.
    """
    async with asyncio.timeout(HANG_SECONDS):
        newest = (await bus.stream_state(subjects.TRAIN_ROLLOUTS)).last_seq
        while True:
            info = await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, subjects.STORE)
            if info.ack_floor is not None and (info.ack_floor.stream_seq or 0) >= newest:
                return
            await asyncio.sleep(0.05)


async def test_what_was_acknowledged_survives_a_kill_and_what_was_not_comes_again(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    for number in range(20):
        for part in batches(f"before-{number}", 0):
            await send(bus, part, f"{number}:{part.sequence}")
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 20)
    for number in range(200):
        for part in batches(f"amid-{number}", 0):
            await send(bus, part, f"amid:{number}:{part.sequence}")
        if number == 100:
            store.kill()
    again = await asyncio.to_thread(start_store, nats_url)
    await asyncio.to_thread(again.until, "SELECT count() FROM rollouts", 220)
    await asyncio.to_thread(again.until, "SELECT count() FROM model_calls", 440)
    assert again.fetch_value("SELECT uniqExact(rollout_id, call) FROM model_calls") == 440
    await drained(bus)


async def test_a_store_asked_to_stop_writes_what_it_has_collected(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url, flush_interval_seconds=10 * HANG_SECONDS)
    parts = batches("a", 0)
    for part in parts:
        await send(bus, part, f"{part.sequence}")
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, subjects.STORE)).num_ack_pending < len(parts):
            await asyncio.sleep(0.02)
    store.process.terminate()
    assert await asyncio.to_thread(store.process.wait, HANG_SECONDS) == 0
    info = await bus.js.consumer_info(subjects.TRAIN_ROLLOUTS, subjects.STORE)
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    again = await asyncio.to_thread(start_store, nats_url)
    assert again.fetch_value("SELECT count() FROM rollouts") == 1


async def test_an_event_delivered_three_times_is_one_row(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    for turn in range(3):
        for part in batches("a", 0, reward=0.5):
            await send(bus, part, f"{turn}:{part.sequence}")
        await TaskPublisher(bus).publish_task(Task(id="a", run_id="run", agent="default", input={"turn": 1}))
    await drained(bus)
    counted = {
        view: store.fetch_value(f"SELECT count() FROM {view}")
        for view in ("attempts", "rollouts", "model_calls", "tasks")
    }
    assert counted == {"attempts": 1, "rollouts": 1, "model_calls": 2, "tasks": 1}
    assert store.fetch_value("SELECT count() FROM tokens") == 6
    assert store.fetch_value("SELECT avg(reward) FROM rollouts") == 0.5
    assert store.fetch_value("SELECT count() FROM check_unfinished_rollouts") == 0


async def test_a_rollout_is_its_first_result_whatever_failed_before(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    endings: list[tuple[Outcome, bool]] = [
        ("infra_error", False),
        ("infra_error", True),
        ("ok", True),
        ("timeout", True),
    ]
    for attempt, (outcome, final) in enumerate(endings, start=1):
        for part in batches("a", 0, reward=float(attempt), attempt=attempt, outcome=outcome, final=final):
            await send(bus, part, f"{attempt}:{part.sequence}")
        expected = select_attempt(
            [AttemptResult(outcome=o, is_final=f, num_spans=1, started_ns=0, ended_ns=0) for o, f in endings[:attempt]]
        )
        await drained(bus)
        assert store.fetch_value("SELECT count() FROM attempts") == attempt
        attempts = [attempt for (attempt,) in store.sql.query("SELECT attempt FROM rollouts").result_rows]
        assert attempts == ([] if expected is None else [expected + 1])
    assert store.fetch_value("SELECT groupArray(outcome) FROM (SELECT outcome FROM attempts ORDER BY attempt)") == [
        outcome for outcome, _ in endings
    ]


async def test_a_rollout_is_its_first_attempt_to_end(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    for attempt, reward in ((2, 1.0), (1, 0.0)):  # the first attempt was slow, and comes late
        for part in batches("a", 0, reward=reward, attempt=attempt):
            await send(bus, part, f"{attempt}:{part.sequence}")
    await drained(bus)
    assert store.fetch_value("SELECT count() FROM attempts") == 2
    assert store.sql.query("SELECT attempt, reward FROM rollouts").result_rows == [(2, 1.0)]


async def test_swaps_and_what_was_decided_of_versions_are_kept(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    releases = WeightRegistry(bus, "policy")
    await releases.append_decision("approved", 3, actor="n0", metrics={"k3_kl": 0.25})
    await releases.append_decision("revoked", 4, actor="n0", reason="entropy is 8")
    turn = SwapLockState(model="policy", node="n0", acquired_at_ns=1)
    await bus.publish(subjects.swap_lock("policy"), turn, msg_id="turn")
    applied = WeightsActivated(
        node="n0", model="policy", version=3, fetch_seconds=1, verify_seconds=0.5, pause_seconds=0.25, activated_at_ns=1
    )
    await bus.publish(subjects.activated("n0"), applied, msg_id="applied")
    await asyncio.to_thread(store.until, "SELECT count() FROM weight_activations", 1)
    await asyncio.to_thread(store.until, "SELECT count() FROM release_decisions", 2)
    assert store.fetch_value("SELECT (fetch_seconds, verify_seconds, pause_seconds) FROM weight_activations") == (
        1.0,
        0.5,
        0.25,
    )
    decisions = "SELECT version, action, actor, reason, metrics['k3_kl'] FROM release_decisions ORDER BY version"
    assert store.sql.query(decisions).result_rows == [
        (3, "approved", "n0", "", 0.25),
        (4, "revoked", "n0", "entropy is 8", 0.0),
    ]
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 0, "a turn is of no use to the store"


async def test_poison_goes_to_dead_and_its_neighbours_into_the_tables(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    for number in range(40):
        (batch,) = batches(f"good-{number}", 0, parts=1)
        await send(bus, batch, f"good:{number}")
        if number == 20:
            unfit = msgspec.structs.replace(batch, attempt=70_000)  # decodes, but no column holds it
            await send(bus, unfit, "unfit")
            await bus.js.publish(
                subjects.rollout("train"),
                b"\xc1 not MessagePack",
                headers={subjects.SCHEMA_HEADER: schema_of(SpanBatch)},
            )
            await bus.js.publish(subjects.rollout("train"), b"\x80")
    store = await asyncio.to_thread(start_store, nats_url)
    await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 40)
    await asyncio.to_thread(store.until, "SELECT count() FROM dead_letters", 3)
    reasons = [row[0] for row in store.sql.query("SELECT reason FROM dead_letters ORDER BY sequence").result_rows]
    assert "not insertable" in reasons[0]
    assert all(reasons)
    payloads = store.sql.query("SELECT payload FROM dead_letters", column_formats={"payload": "bytes"}).result_rows
    assert (b"\xc1 not MessagePack",) in payloads


@pytest.mark.usefixtures("bus")
def test_an_edited_migration_is_refused_and_a_new_one_applied_once(
    nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    bare = client(writer_url(tmp_path / "store", start_store(nats_url).url), "default")
    first = Migration("0001_a.sql", "CREATE TABLE {database}.a (n UInt8) ENGINE = MergeTree ORDER BY n;\n")
    second = Migration("0002_b.sql", "CREATE VIEW {database}.b AS SELECT * FROM {database}.a;\n")
    assert migrate(bare, "other", [first]) == ["0001_a.sql"]
    assert migrate(bare, "other", [first, second]) == ["0002_b.sql"]
    assert migrate(bare, "other", [first, second]) == []
    assert migrate(bare, "other", [first]) == [], "an older release starts on a newer database"
    edited = Migration("0001_a.sql", first.sql.replace("UInt8", "UInt16"))
    with pytest.raises(MigrationError, match=r"0001_a\.sql was applied to database other and edited since"):
        migrate(bare, "other", [edited, second])
    names = [migration.name for migration in migrations.load_migrations()]
    assert names == [
        "0001_tables.sql",
        "0002_grades.sql",
        "0003_task_decisions.sql",
        "0004_reviews.sql",
        "0005_external_cost.sql",
        "0006_external_models.sql",
        "0007_reward_names.sql",
    ]


@pytest.mark.usefixtures("bus")
def test_a_port_in_use_and_a_directory_in_use_are_one_sentence(
    nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    store = start_store(nats_url)
    port = store.url.rsplit(":", 1)[1]

    def fails(*arguments: object) -> str:
        command = [sys.executable, "-m", "lightningbus", "store", "--bus", nats_url, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        assert done.returncode == 2, done.stderr
        return done.stderr.strip().splitlines()[-1]

    assert f"http_port: cannot listen on 127.0.0.1:{port}" in fails("--data-dir", tmp_path / "new", "--http-port", port)
    assert "is in use by another process" in fails("--data-dir", tmp_path / "store", "--http-port", 0)


@pytest.mark.usefixtures("bus")
def test_a_clickhouse_that_is_down_is_waited_for_and_said_so(nats_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"
    command = [sys.executable, "-m", "lightningbus", "store", "--bus", nats_url, "--url", nobody]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = next(text for text in process.stderr if "trying again" in text)
    assert "no ClickHouse answers at http://127.0.0.1" in line and "secret" not in line
    process.terminate()
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0


def test_the_same_messages_make_the_same_deduplication_token() -> None:
    class Numbered(msgspec.Struct):
        stream: str
        sequence: int

    first: Any = Numbered("EVENTS", 1)
    second: Any = Numbered("EVENTS", 2)
    assert deduplication_token([first, second]) == deduplication_token([second, first]) != deduplication_token([first])
