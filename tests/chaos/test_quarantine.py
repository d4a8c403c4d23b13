"""A verdict amid a run: the engine is replaced, nothing that it applies to is trained, and nothing is lost."""

import asyncio
import time
from pathlib import Path

import pytest

from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.schemas.audits.events import AuditVerdict
from tests.chaos.__main__ import prepare
from tests.chaos.running_system import GROUPS, RUN, SAMPLES, RunningSystem, run_system

pytestmark = pytest.mark.timeout(300)
STEPS = 8
TRAINED = "SELECT count() FROM training_rollouts WHERE run_id = {run_id:String} AND trained"
REASONS = """
SELECT exclusion_reason, count() FROM training_rollouts WHERE run_id = {run_id:String} AND NOT trained
GROUP BY exclusion_reason
"""
QUARANTINED = (
    "SELECT count(), countIf(trained), countIf(startsWith(exclusion_reason, 'quarantined')) FROM quarantined_rollouts"
)


async def test_what_a_verdict_applies_to_is_never_trained(tmp_path: Path) -> None:
    place = tmp_path / "system"
    await asyncio.to_thread(prepare, place)
    async with run_system(place, steps=STEPS, nodes=2, runners=1, token_seconds=0.02) as system:
        await system.tap.steps_made(2)
        engine_id, version = await serving_engine(system)
        verdict = AuditVerdict(
            engine_id=engine_id, version=version, failed_version=version, reason="it differs", num_tokens=9,
            evidence=30.0, decided_at_ns=time.time_ns(),
        )  # fmt: skip
        await AuditLog(system.bus, "policy").append(verdict)
        await system.finished(200)
        await system.drained()
        sql = system.sql()
        parameters = {"run_id": RUN}
        ((num_trained,),) = sql.query(TRAINED, parameters=parameters).result_rows
        reasons = dict(sql.query(REASONS, parameters=parameters).result_rows)
        ((quarantined, wrongly, excluded),) = sql.query(QUARANTINED).result_rows
        assert not sql.query("SELECT * FROM check_quarantined_training").result_rows
        engines = {row[0] for row in sql.query("SELECT DISTINCT arrayJoin(engine_ids) FROM model_calls").result_rows}
    assert wrongly == 0
    assert excluded > 0 and quarantined >= excluded and reasons[f"quarantined: engine {engine_id}"] == excluded
    node = engine_id.partition(":")[0]
    assert len([engine for engine in engines if engine.startswith(f"{node}:")]) == 2, "another engine took its place"
    assert num_trained >= STEPS * GROUPS * SAMPLES - excluded, "their tasks, or others of their groups, were trained"


async def serving_engine(system: RunningSystem) -> tuple[str, int]:
    """An engine that answers, and its version."""
    async with asyncio.timeout(60):
        while True:
            for beat in system.fleet.members():
                if beat.role == "inference" and beat.state == "ready" and beat.version is not None:
                    return str(beat.status["engine_id"]), beat.version
            await system.fleet.wait_for_change()
