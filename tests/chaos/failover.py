"""A learner replaced by a standby that has a copy of its checkpoints, and its return with the checkpoints it had."""

import asyncio
import random
import shutil
import signal
from pathlib import Path

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.processes.supervisor import ChildSpec
from tests.chaos.at_work import at_work
from tests.chaos.faults import Log
from tests.chaos.oracle import Verdict
from tests.chaos.report import Report
from tests.chaos.running_system import RunningSystem

STEPS, BOUND, GROUPS, SAMPLES = 16, 1, 2, 4
STEPS_BEFORE, STEPS_OF_STANDBY = 4, 4
BATCHES = "SELECT step, epoch FROM raw_training_steps GROUP BY step, epoch HAVING uniqExact(batch_sha256) > 1"
SHOWN_TWICE = "SELECT step FROM training_steps GROUP BY step HAVING count() > 1"
GIVEN_UP_ALERTS = "SELECT count() FROM alerts WHERE reason LIKE '%training goes back to step %' AND NOT resolved"
AGES = """
SELECT step, epoch, rollout_id, toInt64(version) - 1 - toInt64(arrayJoin(mapKeys(version_tokens))) AS age
FROM raw_training_rollouts FINAL WHERE trained AND NOT age BETWEEN 0 AND {bound:Int64}
"""
"""Tokens too old in any step, those of steps included that were made again by another learner."""


async def failover_back(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """A learner replaced by a standby, whose steps it makes again when it comes back with its older checkpoints."""
    learner = {
        "max_staleness": BOUND, "groups_per_step": GROUPS, "group_size": SAMPLES,
        "checkpoint_interval": rng.randint(1, 3),
    }  # fmt: skip
    async with at_work(
        place, report, "failover_back", STEPS, 0.02, evaluate=False, learner=learner, bound=BOUND,
        examine=_examine_steps,
    ) as (system, log):  # fmt: skip
        await _there_and_back(system, log)


async def _there_and_back(system: RunningSystem, log: Log) -> None:
    """The learner is killed, its standby makes steps and is killed too; then the first learner comes back."""
    await system.tap.steps_made(STEPS_BEFORE)
    first = await _kill(system)
    standby = await asyncio.to_thread(_copy, first)
    async with log.timed("a standby takes over"):
        await system.bring_up(standby)
        await system.tap.steps_made(system.tap.steps + STEPS_OF_STANDBY)
    await _kill(system)
    system.was_set_back = True
    async with log.timed("the first learner comes back"):
        await system.bring_up(first)
        await system.tap.steps_made(system.tap.steps + 1)


async def _kill(system: RunningSystem) -> ChildSpec:
    """``kill -9`` of the learner, which nobody starts again."""
    system.signal("learner", signal.SIGKILL)
    return await system.take_down("learner")


def _copy(first: ChildSpec) -> ChildSpec:
    """Copy checkpoints and their key, as to another machine."""
    assert isinstance(first.settings, LearnerSettings)
    source = first.settings.checkpoint_dir
    target = source.with_name("standby")
    shutil.copytree(source, target, symlinks=True)
    shutil.copy(_key(source), _key(target))
    return ChildSpec(first.name, first.role, first.settings.model_copy(update={"checkpoint_dir": target}))


def _key(checkpoints: Path) -> Path:
    return checkpoints.with_name(f"{checkpoints.name}.key")


async def _examine_steps(system: RunningSystem, verdict: Verdict) -> None:
    """Add to a verdict two batches of a step by one learner, a step shown twice, and tokens beyond the bound."""
    sql = system.sql()
    if sql.query(GIVEN_UP_ALERTS).first_row != (1,):
        verdict.wrong.append("the learner that comes back does not say once that it gives up steps")
    verdict.wrong += [f"step {step} of epoch {epoch} has two batches" for step, epoch in sql.query(BATCHES).result_rows]
    verdict.duplicated += [f"step {step} is shown twice" for (step,) in sql.query(SHOWN_TWICE).result_rows]
    verdict.wrong += [
        f"step {step} of epoch {epoch} trained tokens of {rollout} that were {age} updates old"
        for step, epoch, rollout, age in sql.query(AGES, parameters={"bound": BOUND}).result_rows
    ]
