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
from tests.chaos.scenarios import (
    SCENARIOS,
    absences,
    bus_loss,
    checkpoints,
    cluster,
    failover_back,
    no_calls,
    random_kills,
    storage,
    store_disk,
    task_sets,
    teachers,
    two_learners,
)

pytestmark = pytest.mark.timeout(600)
MOST_MIB = {"learner": 1500, "store": 800}
"""A learner has torch in its memory, a store ClickHouse; the others are small."""
SEED = int(os.environ.get("CHAOS_SEED", "7"))


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


async def test_nothing_is_lost_or_doubled_when_the_leader_of_a_cluster_is_killed(place: Path) -> None:
    report = Report(SEED)
    await cluster(place, report, random.Random(SEED), kills=0, rollouts=512)
    assert report.good, str(report.verdicts["cluster"])


async def test_nothing_is_lost_or_doubled_by_a_full_disk_and_broken_weights(place: Path) -> None:
    report = Report(SEED)
    await storage(place, report, random.Random(SEED), kills=0, rollouts=512)
    assert report.good, str(report.verdicts["storage"])


async def test_a_learner_killed_between_checkpoints_or_with_a_truncated_one_loses_nothing(place: Path) -> None:
    report = Report(SEED)
    await checkpoints(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["checkpoints"])


@pytest.mark.parametrize("interval", [1, 3])
async def test_no_token_is_trained_beyond_the_bound_however_the_learner_is_stopped(place: Path, interval: int) -> None:
    report, name = Report(SEED), f"restarts_{interval}"
    await SCENARIOS[name](place, report, random.Random(SEED), 15, 0)
    assert report.good, f"seed {SEED}: {report.verdicts[name]}"


async def test_nothing_is_lost_when_the_disk_of_embedded_clickhouse_is_full(place: Path) -> None:
    report = Report(SEED)
    await store_disk(place, report, random.Random(SEED), kills=0, rollouts=512)
    assert report.good, str(report.verdicts["store_disk"])


async def test_malformed_tasks_cost_no_slot_and_an_absent_or_hung_learner_is_an_alert(place: Path) -> None:
    report = Report(SEED)
    await absences(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["absences"])


async def test_training_goes_on_when_the_bus_is_rolled_back_emptied_or_removed(place: Path) -> None:
    report = Report(SEED)
    await bus_loss(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["bus_loss"])


async def test_of_two_learners_each_goes_on_while_the_other_is_killed(place: Path) -> None:
    """No rollout is lost, none trained twice by a model, and every version of each is its learner's."""
    report = Report(SEED)
    await two_learners(place, report, random.Random(SEED), kills=30, rollouts=0)
    assert report.good, str(report.verdicts["two_learners"])


async def test_each_trained_rollout_is_graded_once_and_scored_once_whoever_is_killed(place: Path) -> None:
    report = Report(SEED)
    await teachers(place, report, random.Random(SEED), kills=6, rollouts=0)
    assert report.good, f"seed {SEED}: {report.verdicts['teachers']}"
    assert sum(len(seconds) for seconds in report.logs["teachers"].recoveries.values()) == 6


async def test_training_pauses_while_agents_call_no_model_and_goes_on_once_they_do(place: Path) -> None:
    report = Report(SEED)
    await no_calls(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["no_calls"])


async def test_a_task_set_whose_agents_all_fail_leaves_the_other_its_pace(place: Path) -> None:
    report = Report(SEED)
    await task_sets(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["task_sets"])


async def test_a_learner_that_comes_back_behind_its_standby_makes_its_steps_again(place: Path) -> None:
    report = Report(SEED)
    await failover_back(place, report, random.Random(SEED), kills=0, rollouts=0)
    assert report.good, str(report.verdicts["failover_back"])
