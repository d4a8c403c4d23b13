"""What the store promises, on the embedded engine always and on the server that `LIGHTNINGBUS_TEST_SQL` names.

A server gets a database of its own, which is dropped at the end.
"""

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from msgspec.structs import replace

from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.spans import Span, SpanBatch
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from lightningbus.store.reports import REPORTS
from lightningbus.store.reports.compared_runs import COMPARISONS
from tests import seed_store
from tests.store.conftest import serving

pytestmark = pytest.mark.integration

SERVER = os.environ.get("LIGHTNINGBUS_TEST_SQL")
SPANS, PER_BATCH = 1_000_000, 1000


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param(
            "server",
            marks=pytest.mark.skipif(
                not SERVER, reason="LIGHTNINGBUS_TEST_SQL names no ClickHouse server to test against"
            ),
        ),
    ],
)
def sql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client on a fresh database with all tables and views."""
    database = f"test_{uuid.uuid4().hex[:12]}"
    with serving(tmp_path_factory.mktemp("store")) as store:
        url = SERVER if request.param == "server" else store.url
        assert url is not None
        bare = connect(url, None)
        migrations.migrate(bare, database)
        client = connect(url, database)
        migrations.create_views(client, database)
        yield client
        bare.command(f"DROP DATABASE {database}")


def fetch_value(sql: Client, statement: str) -> object:
    row = sql.query(statement).first_row
    assert row is not None
    return row[0]


@pytest.mark.long
def test_a_million_spans_in_two_cuts_are_a_million(sql: Client) -> None:
    """Inserted twice, in batches that begin and end elsewhere: the key folds what the token of a batch cannot."""
    types = load_column_types(sql, sql.database or "")["raw_spans"]
    parts = []
    for first in range(0, SPANS, 50_000):
        rows = [
            row
            for start in range(first, first + 50_000, PER_BATCH)
            for _, row in build_rows(_batch(start), EventMetadata(1, 0, lambda run: 0))
        ]
        parts.append(arrow.rows_to_arrow(rows, types))
    whole = pa.concat_tables(parts)
    for size in (100_000, 77_777):
        for at in range(0, SPANS, size):
            sql.insert_arrow("raw_spans", whole.slice(at, size))
    assert fetch_value(sql, "SELECT count() FROM raw_spans WHERE run_id = 'million'") > SPANS
    assert fetch_value(sql, "SELECT count() FROM spans WHERE run_id = 'million'") == SPANS
    assert fetch_value(sql, "SELECT uniqExact(span_id) FROM spans WHERE run_id = 'million'") == SPANS


def _batch(first: int) -> SpanBatch:
    at = seed_store.START_NS + first * 1000
    spans = tuple(
        Span(
            trace_id="t",
            span_id=f"{first + n:016x}",
            name="work",
            start_ns=at + n,
            end_ns=at + n,
            attributes={"a": "b"},
        )
        for n in range(PER_BATCH)
    )
    return SpanBatch(
        run_id="million",
        task_id=f"t{first}",
        rollout_id=f"t{first}.0",
        sample_index=0,
        group_size=1,
        attempt=1,
        execution_id=f"e{first}",
        agent="default",
        mode="eval",
        runner="r",
        sequence=0,
        spans=spans,
    )


def test_a_run_delivered_twice_is_one_run(sql: Client) -> None:
    batches = list(seed_store.run("twice", steps=2, groups=2))
    for cut in (len(batches), len(batches) // 3):
        for at in range(0, len(batches), cut):
            seed_store.insert(sql, batches[at : at + cut], database=sql.database or "", first=at + 1)
    assert fetch_value(sql, "SELECT count() FROM rollouts WHERE run_id = 'twice'") == 2 * 2 * 4
    assert fetch_value(sql, "SELECT count() FROM model_calls WHERE run_id = 'twice'") == 2 * 2 * 4 * 3
    assert fetch_value(sql, "SELECT sum(rollouts) FROM runs WHERE run_id = 'twice'") == 2 * 2 * 4
    for empty in ("check_prompt_digests", "check_duplicate_training", "check_unfinished_rollouts"):
        assert fetch_value(sql, f"SELECT count() FROM {empty}") == 0


def test_every_view_and_report_answers(sql: Client) -> None:
    grade = RolloutGraded(
        run_id="asked", task_id="t", rollout_id="t.0", execution_id="e", grading="strict", graders_sha256="",
        reward=1.0, started_at_ns=1, graded_at_ns=2,
    )  # fmt: skip
    seed_store.insert(
        sql, [*seed_store.run("asked"), *seed_store.external_attempt("asked"), grade], database=sql.database or ""
    )
    views = sql.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View'"
    ).result_rows
    for (name,) in views:
        sql.query(f"SELECT * FROM {name} LIMIT 1")
    assert {name for (name,) in views} >= REPORTS.keys() - set(COMPARISONS)
    assert not {(name,) for name in COMPARISONS} & set(views)
    for report in REPORTS.values():
        fields = {"a": "asked", "b": "asked"} if report.name in COMPARISONS else {}
        values = report.values(fields, "" if fields else "asked")
        assert sql.query(report.query(sql.database or "", until=datetime.now(UTC)), parameters=values).result_rows, (
            report.name
        )


def test_words_are_found_by_the_index(sql: Client) -> None:
    seed_store.insert(sql, seed_store.run("words", steps=1), database=sql.database or "")
    query = "SELECT count() FROM raw_call_payloads WHERE run_id = 'words' AND hasAllTokens(request, ['question', 'p1'])"
    assert fetch_value(sql, query) > 0  # type: ignore[operator]
    plan = "\n".join(row[0] for row in sql.query(f"EXPLAIN indexes = 1 {query}").result_rows)
    assert "request_words" in plan


def test_rows_of_a_run_are_gone_after_their_days(sql: Client) -> None:
    types = load_column_types(sql, sql.database or "")
    batches = [event for event in seed_store.run("short", steps=1, groups=1) if isinstance(event, SpanBatch)]
    for batch in batches:
        for table, row in build_rows(batch, EventMetadata(1, 0, lambda run: 1)):  # a day, long over when it was written
            row = {**row, **{name: 1_000_000_000 for name in ("started_at",) if name in row}}
            sql.insert_arrow(table, arrow.rows_to_arrow([row], types[table]))
    for table in ("raw_attempts", "raw_spans", "raw_model_calls", "raw_call_payloads"):
        sql.command(f"OPTIMIZE TABLE {table} FINAL")
        assert fetch_value(sql, f"SELECT count() FROM {table} WHERE run_id = 'short'") == 0, table


def test_on_a_cluster_every_table_is_a_replica(sql: Client) -> None:
    """ClickHouse's own parser reads what would be sent there."""
    for migration in migrations.load_migrations():
        for statement in migration.statements("lightningbus", "main"):
            read = fetch_value(sql, f"SELECT formatQuerySingleLine({_quoted(statement)})")
            assert "ON CLUSTER main" in str(read)
            if "MergeTree" in statement:
                assert "ENGINE = Replicated" in str(read)
    for report in REPORTS.values():
        statement = migrations.render_sql(report.view, "lightningbus", "main")
        assert "ON CLUSTER main" in str(fetch_value(sql, f"SELECT formatQuerySingleLine({_quoted(statement)})"))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("UInt16", [70_000]),
        ("UInt32", ["x"]),
        ("Array(UInt32)", [b"\0\0\0"]),
        ("FixedString(32)", [b"ab"]),
        ("Odd", [1]),
    ],
)
def test_a_value_no_column_holds_is_refused_before_it_is_sent(kind: str, values: list[object]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        arrow.column_to_arrow(kind, values)


def test_attributes_of_any_type_are_kept_as_text() -> None:
    kind = "Map(LowCardinality(String), String)"
    kept = arrow.column_to_arrow(kind, [{"a": "x"}, {"b": None, "c": b"\xff", "d": [1, "y"], "e": True}])
    assert kept.to_pylist() == [[("a", "x")], [("b", "null"), ("c", '"/w=="'), ("d", '[1,"y"]'), ("e", "true")]]


def test_a_step_stays_until_a_later_epoch_has_made_the_step_again(sql: Client) -> None:
    """A learner that goes back to its checkpoint makes the steps after the checkpoint again, one by one."""
    events = list(seed_store.run("undone", steps=3, groups=1))
    (second,) = [event for event in events if isinstance(event, TrainingStep) and event.step == 2]
    again = replace(second, epoch=second.epoch + 1)
    seed_store.insert(sql, [*events, again], database=sql.database or "", first=900_000)
    steps = sql.query("SELECT step, epoch FROM training_steps WHERE run_id = 'undone' ORDER BY step").result_rows
    assert [tuple(row) for row in steps] == [(1, second.epoch), (2, again.epoch), (3, second.epoch)]
    trained = sql.query("SELECT DISTINCT step, epoch FROM training_rollouts WHERE run_id = 'undone' AND trained")
    assert sorted(map(tuple, trained.result_rows)) == [(1, second.epoch), (2, again.epoch), (3, second.epoch)]
    assert not sql.query("SELECT * FROM check_duplicate_training WHERE run_id = 'undone'").result_rows


def test_a_rollout_that_a_later_epoch_trains_in_another_step_counts_there_alone(sql: Client) -> None:
    events = list(seed_store.run("reordered", steps=3, groups=1))
    steps = [event for event in events if isinstance(event, TrainingStep)]
    again = replace(steps[2], step=2, epoch=steps[2].epoch + 1)
    seed_store.insert(sql, [*events, again], database=sql.database or "", first=910_000)
    (moved, *_) = [rollout.rollout_id for rollout in steps[2].rollouts if rollout.trained]
    query = (
        "SELECT step, epoch FROM training_rollouts WHERE run_id = 'reordered' AND rollout_id = {id:String} AND trained"
    )
    assert [tuple(row) for row in sql.query(query, {"id": moved}).result_rows] == [(2, again.epoch)]
    assert not sql.query("SELECT * FROM check_duplicate_training WHERE run_id = 'reordered'").result_rows


def test_a_new_column_is_in_the_view_of_its_table(sql: Client) -> None:
    sql.command("ALTER TABLE raw_model_calls ADD COLUMN a_new_column UInt8 DEFAULT 7")
    migrations.create_views(sql, str(sql.database))
    assert "a_new_column" in sql.query("SELECT * FROM model_calls LIMIT 0").column_names
    sql.command("ALTER TABLE raw_model_calls DROP COLUMN a_new_column")
    migrations.create_views(sql, str(sql.database))
