"""``make chaos`` in small: the same scenarios, faults and oracle. ``CHAOS_SEED`` chooses another order of kills."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.__main__ import prepare
from tests.chaos.at_work import at_work, steps_for
from tests.chaos.report import Report
from tests.chaos.scenarios import SCENARIOS, random_kills, teachers

pytestmark = pytest.mark.timeout(600)
MOST_MIB = {"learner": 1500, "store": 800}
"""A learner has torch in its memory, a store ClickHouse; the others are small."""
SEED = int(os.environ.get("CHAOS_SEED", "7"))
SMALL = {
    "cluster": (0, 512),
    "storage": (0, 512),
    "checkpoints": (0, 0),
    "restarts_1": (15, 0),
    "restarts_3": (15, 0),
    "store_disk": (0, 512),
    "absences": (0, 0),
    "bus_loss": (0, 0),
    "two_learners": (30, 0),
    "no_calls": (0, 0),
    "task_sets": (0, 0),
    "failover_back": (0, 0),
}
"""Number of kills and of rollouts by scenario; `make chaos` runs the same scenarios with more."""


@pytest.fixture
async def place(tmp_path: Path) -> Path:
    """A directory with a model and tasks."""
    await asyncio.to_thread(prepare, tmp_path / "system")
    return tmp_path / "system"


async def test_nothing_is_lost_or_doubled_by_random_kills(place: Path) -> None:
    report = Report(SEED)
    await random_kills(place, report, random.Random(SEED), kills=14, rollouts=320)
    print(report.table())
    assert report.good, f"seed {SEED}: {report.verdicts['kills']}"
    assert sum(len(seconds) for seconds in report.logs["kills"].recoveries.values()) == 14


async def test_nothing_is_lost_or_doubled_when_links_break_and_clickhouse_and_streams_are_full(place: Path) -> None:
    report = Report(SEED)
    async with at_work(place, report, "network", steps_for(128), 0.1, server=True) as (system, log):
        for name in set(system.proxies) - {"runner-0", "store", "clickhouse"}:  # `make chaos` breaks them all
            del system.proxies[name]
        await faults.links(system, log, ("half_open", "reset"))
        await faults.clickhouse_refuses(system, log)
        waited = await faults.full_streams(system, log)
    assert report.good, str(report.verdicts["network"])
    assert any(name.startswith("runner") for name in waited), waited
    for name, (_, most, _) in report.memory["network"].items():
        assert most < MOST_MIB.get(name, 250), f"{name} grew to {most} MiB"


async def test_nothing_is_lost_or_doubled_when_processes_stand_still_or_have_a_wrong_clock(place: Path) -> None:
    report = Report(SEED)
    async with at_work(place, report, "standstills", steps_for(256), 0.1) as (system, log):
        await faults.clock(system, log, "runner-0", -1)
        await faults.clock(system, log, "learner", 1)
        await faults.stops(system, log, ["learner", "runner-1", "inference-0"])
    assert report.good, str(report.verdicts["standstills"])


@pytest.mark.parametrize("name", SMALL)
async def test_a_scenario_breaks_no_guarantee(place: Path, name: str) -> None:
    report = Report(SEED)
    await SCENARIOS[name](place, report, random.Random(SEED), *SMALL[name])
    assert report.good, f"seed {SEED}: {report.verdicts[name]}"


async def test_each_trained_rollout_is_graded_once_and_scored_once_whoever_is_killed(place: Path) -> None:
    report = Report(SEED)
    await teachers(place, report, random.Random(SEED), kills=6, rollouts=0)
    assert report.good, f"seed {SEED}: {report.verdicts['teachers']}"
    assert sum(len(seconds) for seconds in report.logs["teachers"].recoveries.values()) == 6
