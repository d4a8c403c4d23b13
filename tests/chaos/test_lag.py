"""The staleness bound, from dispatch to the batch: a slow learner, a node slow to take weights, and late joiners."""

import asyncio
import signal
from pathlib import Path

import pytest

from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.run_directory.directory import RunDirectory
from tests.chaos.__main__ import prepare
from tests.chaos.running_system import (
    GROUPS,
    RUN,
    SAMPLES,
    STAND_IN,
    RunningSystem,
    learner_settings,
    node_settings,
    run_system,
    runner_settings,
)

pytestmark = pytest.mark.timeout(300)
STEPS, BOUND, PUBLISH_EVERY = 8, 2, 2

SHARES = """
SELECT count() AS dispatched,
    countIf(rollout_id IN (SELECT rollout_id FROM training_rollouts WHERE trained)) AS trained,
    (SELECT countIf(date_diff('second', started_at, ended_at) >= 4) FROM rollouts) AS slow
FROM tasks WHERE run_id = {run_id:String}
"""
DISPATCHED = """
SELECT task_id, toFloat64(min(enqueued_at)) AS at FROM tasks WHERE run_id = {run_id:String} GROUP BY task_id ORDER BY at
"""
ENDED = "SELECT step, toFloat64(ended_at) FROM training_steps WHERE run_id = {run_id:String} ORDER BY step"
TRAINED = """
SELECT u.step, max(u.version - 1 - v) FROM training_rollouts AS u
INNER JOIN completions AS c ON u.run_id = c.run_id AND u.rollout_id = c.rollout_id AND u.execution_id = c.execution_id
ARRAY JOIN c.token_versions AS v WHERE u.run_id = {run_id:String} AND u.trained GROUP BY u.step ORDER BY u.step
"""


async def test_no_token_is_trained_beyond_the_bound_and_no_task_dispatched_beyond_it(tmp_path: Path) -> None:
    place = tmp_path / "system"
    await asyncio.to_thread(prepare, place)
    every = {"weight_sync_interval": PUBLISH_EVERY, "max_staleness": BOUND}
    async with run_system(place, steps=STEPS, nodes=1, runners=1, token_seconds=0.03, learner=every) as system:
        late = Supervisor(RunDirectory(place / "run"), system.nats.url)
        try:
            # A node that takes three seconds for each version, while its requests stand still.
            slow = node_settings(place, "inference-slow", 0.03)
            slow = slow.model_copy(
                update={"vllm_command": [*STAND_IN, "--token-seconds", "0.03", "--load-seconds", "3"]}
            )
            await late.start(ChildSpec("inference-slow", "inference", slow))
            await _step(system, 2)
            pid = system.signal("learner", signal.SIGSTOP)
            assert pid is not None
            await late.start(ChildSpec("runner-late", "runner", runner_settings("runner-late")))
            await late.start(ChildSpec("inference-late", "inference", node_settings(place, "inference-late", 0.03)))
            await _alive(system, {"runner-late", "inference-late"})
            system.signal("learner", signal.SIGCONT)
            await system.finished(200)
        finally:
            await late.stop_all()
        sql = system.sql()
        steps = dict(sql.query(ENDED, parameters={"run_id": RUN}).result_rows)
        dispatched = [at for _, at in sql.query(DISPATCHED, parameters={"run_id": RUN}).result_rows]
        lags = dict(sql.query(TRAINED, parameters={"run_id": RUN}).result_rows)
        nodes = {node for (node,) in sql.query("SELECT DISTINCT node FROM model_calls").result_rows}
        versions = [version for (version,) in sql.query("SELECT version FROM weight_versions").result_rows]
        uses = sql.query("SELECT trained, exclusion_reason, max_staleness FROM training_rollouts").result_rows
    assert len(steps) == len(lags) == STEPS and max(lags.values()) <= BOUND
    assert sorted(versions) == list(range(0, STEPS + 1, PUBLISH_EVERY))
    assert {"inference-slow", "inference-late"} <= set(",".join(nodes).split(","))
    for number, at in enumerate(dispatched):
        ended = sum(end <= at for end in steps.values())
        admitted = (ended + BOUND + 1) * GROUPS
        assert number < admitted, f"group {number} was dispatched when {ended} steps had ended"
    assert all(lag <= BOUND for trained, _, lag in uses if trained) and {reason for _, reason, _ in uses} == {""}


@pytest.mark.parametrize("wait_seconds", [None, 0])
async def test_what_was_dispatched_is_trained_slow_rollouts_too(tmp_path: Path, wait_seconds: float | None) -> None:
    """Within the bound while training waits for slow groups, late if it may not wait; left out never."""
    place = tmp_path / "system"
    await asyncio.to_thread(prepare, place)
    learner = {"max_staleness": 1, "staleness": {"max_wait_seconds": wait_seconds}}
    async with run_system(place, steps=0, nodes=1, runners=0, token_seconds=0.002) as system:
        settings = runner_settings("runner").model_copy(
            update={"entrypoint": "steady:solve_with_stragglers", "concurrency": 16}
        )
        slow = Supervisor(RunDirectory(place / "run"), system.nats.url)
        try:
            await slow.start(ChildSpec("runner", "runner", settings))
            await slow.start(ChildSpec("learner", "learner", learner_settings(place, STEPS, learner)))
            await slow.wait_finished("learner")
            await system.drained()
            sql = system.sql()
            ((dispatched, trained, slow_ones),) = sql.query(SHARES, parameters={"run_id": RUN}).result_rows
            ((oldest,),) = sql.query("SELECT max(max_staleness) FROM training_rollouts WHERE trained").result_rows
        finally:
            await slow.stop_all()
    assert dispatched == trained == STEPS * GROUPS * SAMPLES and slow_ones > 0
    assert (oldest <= 1) == (wait_seconds is None)


async def test_a_learner_whose_versions_nobody_serves_waits_and_goes_on_when_somebody_does(tmp_path: Path) -> None:
    """It dispatches nothing that would be too old when it comes."""
    place = tmp_path / "system"
    await asyncio.to_thread(prepare, place)
    async with run_system(
        place, steps=3, nodes=1, runners=1, token_seconds=0.01, learner={"max_staleness": 0}
    ) as system:
        releases = WeightRegistry(system.bus, "policy")
        await releases.append_decision("pinned", 0, actor="test")
        await _says(system, "a node that serves version 1 or a newer one")
        await releases.append_decision("unpinned", 0, actor="test")
        await system.finished(120)
        sql = system.sql()
        ((tasks,),) = sql.query(
            "SELECT uniqExact(task_id) FROM tasks WHERE run_id = {run_id:String}", {"run_id": RUN}
        ).result_rows
        ((excluded,),) = sql.query("SELECT count() FROM training_rollouts WHERE NOT trained").result_rows
    assert (excluded, tasks) == (0, 3 * GROUPS)


async def _says(system: RunningSystem, waits_for: str) -> None:
    while not any(
        beat.role == "learner" and beat.status.get("waits for") == waits_for for beat in system.fleet.members()
    ):
        await system.fleet.wait_for_change()


async def _step(system: RunningSystem, number: int) -> None:
    while not any(beat.role == "learner" and beat.status.get("step", 0) >= number for beat in system.fleet.members()):
        await system.fleet.wait_for_change()


async def _alive(system: RunningSystem, names: set[str]) -> None:
    while not names <= {beat.id for beat in system.fleet.members() if beat.state in ("running", "ready")}:
        await system.fleet.wait_for_change()
