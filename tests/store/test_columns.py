"""A column is in one place four times: in the event's struct, the row, the table and the page of the store."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lightningbus.schemas.audits.events import AuditState, AuditVerdict, RolloutAudit
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Alert
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion, digest_of
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch, Usage
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import RolloutDisposition, TaskDecision, TrainingStep
from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseState, WeightManifest, WeightsActivated
from lightningbus.store.clickhouse.migrations import load_migrations
from lightningbus.store.ingest.rows.audit import build_audit_rows
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from tests.fuzz.corpora import EVENTS
from tests.store.conftest import prepared

TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS \{database\}\.(\w+)\{on_cluster\}\n\(\n(.*?)\n\)\n", re.S)
TABLES = {
    name: [
        line.split()[0]
        for line in body.splitlines()
        if not line.strip().startswith("INDEX ") and " MATERIALIZED " not in line
    ]
    for migration in load_migrations()
    for name, body in TABLE.findall(migration.sql)
}
"""Columns by table."""
ADDED = re.compile(r"ALTER TABLE \{database\}\.(\w+)\{on_cluster\}\s+ADD COLUMN (?:IF NOT EXISTS )?(\w+)")
for migration in load_migrations():
    for name, column in ADDED.findall(migration.sql):
        if name in TABLES:  # raw_rollouts is made as raw_attempts is
            TABLES[name].append(column)

FIELDS: dict[tuple[type[Event], str], frozenset[str]] = {
    (Task, "raw_tasks"): frozenset({"prior_attempts"}),
    (SpanBatch, "raw_attempts"): frozenset({"sequence", "spans", "end"}),
    (AttemptResult, "raw_attempts"): frozenset({"is_final", "usage"}),
    (Usage, "raw_attempts"): frozenset(),
    (Span, "raw_spans"): frozenset({"call"}),
    (ModelCall, "raw_model_calls raw_call_payloads"): frozenset(),
    (TrainingStep, "raw_training_steps"): frozenset({"rollouts", "spans"}),
    (RolloutDisposition, "raw_training_rollouts"): frozenset(),
    (WeightManifest, "raw_weight_versions"): frozenset(
        {"location", "blobs", "chain", "fingerprint", "broadcast", "canary"}
    ),
    (WeightsActivated, "raw_weight_activations"): frozenset(),
    (ReleaseDecision, "raw_release_decisions"): frozenset(),
    (PromptVersion, "raw_prompt_versions"): frozenset({"canary"}),
    (ReleaseDecision, "raw_prompt_decisions"): frozenset(),
    (Alert, "raw_alerts"): frozenset(),
    (RolloutAudit, "raw_rollout_audits"): frozenset(),
    (AuditVerdict, "raw_audit_verdicts"): frozenset(),
    (RolloutGraded, "raw_grades"): frozenset(),
    (RolloutReviewed, "raw_reviews"): frozenset(),
    (TaskDecision, "raw_task_decisions"): frozenset(),
    (DeadLetter, "raw_dead_letters"): frozenset(),
}
"""Fields that have no column of their own, by struct and its tables."""
COLUMNS = {"start_ns": "started_at", "end_ns": "ended_at"}
"""Columns whose name does not follow from that of the field."""
IDS = {Task: {"id": "task_id"}, ModelCall: {"index": "call", "weight_versions": "token_versions"}}

KEYS = {"run_id", "task_id", "rollout_id", "attempt", "execution_id", "mode", "agent", "model", "epoch"}
"""Columns that many views have: the page names them where they matter."""
UNNAMED = {"retention_days", "prompt_prefix_refs", "request_prefix_refs"}
"""Columns that no view has."""
DERIVED = {
    "runs", "tokens", "prompts", "quarantined_rollouts", "check_unfinished_rollouts", "check_duplicate_training",
    "check_prompt_digests", "check_quarantined_training", "counted_rewards", "trained_tokens",
}  # fmt: skip
"""Views with columns that no table has."""
METRICS = {
    "release_decisions": {"k3_kl", "entropy", "length", "tokens"},
    "prompt_decisions": {"before", "after"},
}
"""Names in the column ``metrics`` of a view."""
SOURCES = {"rollouts": "raw_attempts", "completions": "raw_call_payloads"}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "store.md").read_text()


def documented() -> Iterator[tuple[str, set[str]]]:
    """Views of the page with the columns that it names."""
    table = PAGE.split("| view | one row per |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        _, view, _, columns, _ = line.split("|")
        names = {name for quoted in re.findall(r"`([^`]*)`", columns) for name in quoted.split(", ")}
        yield view.strip(" `"), names


def column_of(struct: type[Event], field: str) -> str:
    return IDS.get(struct, {}).get(field) or COLUMNS.get(field) or re.sub(r"(_at)?_ns$", "_at", field)


@pytest.mark.parametrize(("struct", "tables"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_field_has_a_column_or_is_listed_as_one_without(struct: type[Event], tables: str) -> None:
    columns = {column for table in tables.split() for column in TABLES[table]}
    without = FIELDS[struct, tables]
    fields = [field.name for field in msgspec.structs.fields(struct)]
    assert without <= set(fields)
    assert [field for field in fields if (column_of(struct, field) in columns) == (field in without)] == []


def test_a_row_has_exactly_the_columns_of_its_table() -> None:
    rows = defaultdict(list)
    decision = ReleaseDecision(action="pinned", version=1, actor="me", decided_at_ns=1)
    verdict = AuditVerdict(
        engine_id="n:1", version=1, failed_version=1, reason="r", num_tokens=1, evidence=1.0, decided_at_ns=1
    )
    audit = RolloutAudit(
        run_id="r", rollout_id="a.0", execution_id="e", call=0, model="policy", engine_id="n:1", version=1,
        num_tokens=1, num_differing=1, mean_difference=1.0, max_difference=1.0, tolerance=1.0, evidence=1.0,
        audited_at_ns=1,
    )  # fmt: skip
    prompt = PromptVersion(name="solver", version=0, text="Add.", sha256=digest_of("Add."), created_at_ns=1)
    states = (
        ReleaseState(model="policy", decisions=(decision,)),
        PromptReleaseState(name="solver", decisions=(decision,)),
        prompt,
        AuditState(model="policy", verdicts=(verdict,)),
    )
    for event in (*EVENTS, *states, audit):
        with contextlib.suppress(DecodeError):  # an event that the store does not keep
            for table, row in build_rows(event, EventMetadata(1, 2, lambda run: 3)):
                rows[table].append(row)
    advisory = b'{"id": "i", "timestamp": "2026-01-01T00:00:00Z", "subject": "$JS.API.STREAM.DELETE.TASKS"}'
    for table, row in build_audit_rows(advisory):
        rows[table].append(row)
    assert TABLES.keys() - rows.keys() == {"raw_runs"}
    for table, built in rows.items():
        for row in built:
            assert sorted(row) == sorted(TABLES[table]), table


def test_the_page_names_every_column_that_is_no_key() -> None:
    pages = dict(documented())
    pages["completions"] |= pages["prompts"] | {"started_at"}  # the partition of a payload is that of its call
    for view, names in pages.items():
        if view in DERIVED or view == "rollouts":
            continue
        columns = set(TABLES[SOURCES.get(view, f"raw_{view}")]) - KEYS
        assert columns <= names | UNNAMED, f"docs/store.md does not name {sorted(columns - names - UNNAMED)} of {view}"


@pytest.mark.integration
def test_the_page_names_no_column_that_is_not_there(tmp_path: Path) -> None:
    with prepared(tmp_path) as store:
        for view, names in documented():
            there = {row[0] for row in store.sql.query(f"DESCRIBE TABLE {view}").result_rows}
            metrics = METRICS.get(view, set())
            assert names <= there | metrics | {"attempts"}, f"{view} has no {sorted(names - there)}"
