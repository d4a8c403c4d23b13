"""What verdicts apply to, and whether it was trained, as ClickHouse counts it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from lightningbus.schemas.audits.events import AuditState, AuditVerdict
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.reports import REPORTS
from tests import seed_store
from tests.store.conftest import prepared

pytestmark = pytest.mark.integration


def verdict(version: int, decided_at_ns: int, engine_id: str = seed_store.ENGINE) -> AuditVerdict:
    return AuditVerdict(
        engine_id=engine_id, version=version, failed_version=version, reason="it differs", num_tokens=9, evidence=30,
        decided_at_ns=decided_at_ns,
    )  # fmt: skip


def test_quarantined_rollouts_are_those_a_verdict_applies_to(tmp_path: Path) -> None:
    events = list(seed_store.run("small"))
    steps = [event for event in events if isinstance(event, TrainingStep)]
    decided = verdict(3, steps[4].started_ns - 1)
    states = [AuditState(model="policy", verdicts=(decided,)), AuditState(model="other", verdicts=(verdict(0, 1),))]
    sampled = {
        batch.rollout_id
        for batch in events
        if isinstance(batch, SpanBatch)
        for span in batch.spans
        if span.call is not None and any(run.version >= 3 for run in span.call.weight_versions)
    }
    trained = {use.rollout_id: step.started_ns for step in steps for use in step.rollouts if use.trained}
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, [*events, *states])
        rows = store.sql.query(
            "SELECT rollout_id, trained, trained_before, reason FROM quarantined_rollouts"
        ).result_rows
        assert {row[0] for row in rows} == sampled and len(rows) == len(sampled)
        assert {row[0] for row in rows if row[2]} == {
            rollout for rollout in sampled if trained.get(rollout, decided.decided_at_ns + 1) <= decided.decided_at_ns
        }
        wrongly = {rollout for rollout in sampled if trained.get(rollout, 0) > decided.decided_at_ns}
        assert wrongly and {row[0] for row in rows if row[1]} == wrongly, "the learner of this run knew no verdict"
        rows_of_check = store.sql.query("SELECT rollout_id FROM check_quarantined_training").result_rows
        assert {row[0] for row in rows_of_check} == wrongly
        report = store.sql.query(REPORTS["audit"].query("lightningbus"), REPORTS["audit"].values({}, "small"))
        newest = list(report.named_results())[-1]
        assert newest["verdict"] == "it differs" and newest["quarantined"] == len(sampled)
        assert newest["trained_before"] == sum(row[2] for row in rows) and newest["first_step"] == 4


def test_a_verdict_that_is_overturned_quarantines_nothing(tmp_path: Path) -> None:
    overturned = replace(verdict(3, 20), action="overturned")
    other = verdict(4, 30, engine_id="")
    states = [AuditState(model="policy", verdicts=(each,)) for each in (verdict(3, 10), overturned)]
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, [*seed_store.run("small"), *states])
        assert store.sql.query("SELECT count() FROM quarantined_rollouts").result_rows == [(0,)]
        seed_store.insert(store.sql, [AuditState(model="policy", verdicts=(other,))], first=10_000)
        ((of_version,),) = store.sql.query("SELECT count() FROM quarantined_rollouts").result_rows
        seed_store.insert(store.sql, [AuditState(model="policy", verdicts=(verdict(3, 40),))], first=10_001)
        ((of_both,),) = store.sql.query("SELECT count() FROM quarantined_rollouts").result_rows
    assert of_both > of_version > 0


def test_without_a_verdict_nothing_is_quarantined(tmp_path: Path) -> None:
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, seed_store.run("small"))
        assert store.sql.query("SELECT count() FROM quarantined_rollouts").result_rows == [(0,)]
