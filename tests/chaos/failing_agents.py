"""Agents that give nothing to train on: all of them for a while, or those of one task set for good."""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.at_work import at_work
from tests.chaos.faults import Log
from tests.chaos.oracle import Verdict
from tests.chaos.report import Report
from tests.chaos.running_system import RunningSystem
from tests.polling import HANG_SECONDS

NOTHING = "gave nothing to train on"
"""Words of the alert of a streak of such groups."""
ALERTS = f"SELECT DISTINCT reason FROM alerts WHERE position(reason, '{NOTHING}') > 0"
WELL, FAILING = "well", "failing"
"""Names of task sets."""
STEPS, BOUND, GROUPS, SAMPLES, NUM_TASKS = 32, 2, 3, 4, 64
WITHOUT_CALLS_SECONDS = 120.0
PACE_STEPS, LEAST_PACE = 10, 0.3


async def no_calls(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Agents that call no model for some minutes while a step needs several groups: training pauses, and goes on."""
    switch = place / "fault"
    tasks = _write_tasks(place, WELL, switch=str(switch))
    async with _failing(place, report, "no_calls", tasks=tasks) as (system, log):
        await _without_calls(system, log, switch, WITHOUT_CALLS_SECONDS)


async def task_sets(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Two task sets, and the agents of one fail entirely: the other keeps the pace that it has alone."""
    fault = rng.choice(("errors", "no_calls"))
    seconds: dict[str, float] = {}
    for kind in ("", fault):
        directory = place / (kind or "alone")
        directory.mkdir()
        (directory / "model").symlink_to(place / "model")
        examine = partial(_examine_pace, seconds) if kind else None
        sets = _write_sets(directory, kind)
        async with _failing(directory, report, "task_sets", tasks=sets, examine=examine) as (system, log):
            if kind:
                await system.alert_is_stored(NOTHING, 0, HANG_SECONDS)
            seconds[kind] = await _time_steps(system)
            log.note(f"{PACE_STEPS} steps beside a task set of {kind}", seconds[kind])


def _failing(place: Path, report: Report, name: str, examine: Any = None, **learner: Any) -> Any:
    """A system at work whose learner bears any number of groups that give nothing."""
    learner = {
        "max_staleness": BOUND, "groups_per_step": GROUPS, "group_size": SAMPLES, "max_failed_groups": 10_000,
        **learner,
    }  # fmt: skip
    return at_work(
        place, report, name, STEPS, 0.02, evaluate=False, learner=learner, entrypoint="failing:solve", bound=BOUND,
        examine=examine,
    )  # fmt: skip


async def _without_calls(system: RunningSystem, log: Log, switch: Path, seconds: float) -> None:
    """No agent calls its model for so long: training pauses with a sentence, and goes on once the agents are mended."""
    since = time.time_ns()
    switch.write_text("no_calls")
    await system.alert_is_stored(NOTHING, since, HANG_SECONDS)
    steps = system.tap.steps
    await asyncio.sleep(seconds)  # the fault itself
    assert system.tap.steps <= steps + 1, "only a step that had begun is made while agents call no model"
    steps = system.tap.steps
    switch.unlink()
    async with log.timed("agents call no model"):
        await system.tap.steps_made(steps + 1)
        while any(NOTHING in str(beat.status.get("alert")) for beat in system.fleet.members()):
            await system.fleet.wait_for_change()


def _write_sets(place: Path, fault: str) -> list[dict[str, str]]:
    """Write a set of tasks that are well, and one whose agents have a fault, if any; return the learner's setting."""
    sets = [{"name": WELL, "path": _write_tasks(place, WELL)}]
    return [*sets, {"name": FAILING, "path": _write_tasks(place, FAILING, fault=fault)}] if fault else sets


def _write_tasks(place: Path, name: str, **more: str) -> str:
    """Write tasks with more fields in their input; return the path of their file."""
    tasks = [
        {"id": f"{name}{number}", "input": {"question": f"what is {number}?", **more}} for number in range(NUM_TASKS)
    ]
    path = place / f"{name}.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return str(path)


async def _time_steps(system: RunningSystem) -> float:
    """Seconds of the next training steps."""
    started = time.monotonic()
    await system.tap.steps_made(system.tap.steps + PACE_STEPS)
    return time.monotonic() - started


async def _examine_pace(seconds: Mapping[str, float], system: RunningSystem, verdict: Verdict) -> None:
    """Add to a verdict alerts of sets that are well, and a pace that is not kept."""
    verdict.wrong += find_slowed_sets([reason for (reason,) in system.sql().query(ALERTS).result_rows])
    alone, beside = seconds.values()
    verdict.counts["pace beside the failing set, %"] = round(100 * alone / beside)
    verdict.wrong += [f"{PACE_STEPS} steps took {beside:.0f} s, and {alone:.0f} s alone"] * (
        alone < LEAST_PACE * beside
    )


def find_slowed_sets(reasons: Sequence[str]) -> list[str]:
    """Find alerts of a streak that are not about the failing set alone."""
    wrong = [
        f"an alert about more than the failing set: {reason}" for reason in reasons if f"'{FAILING}'" not in reason
    ]
    return wrong if reasons else ["no alert names the failing set"]
