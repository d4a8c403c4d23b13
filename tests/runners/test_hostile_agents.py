"""Agents that would bring a careless runner down: each ends as it should, and the runner serves the next."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, ended, running, task


@pytest.mark.parametrize(
    "agent",
    [
        "prints_binary",
        "writes_into_our_connection",
        "nests_deeply",
        "says_half_a_character",
        "speaks_for_another",
        "sends_50_mb",
        "forks_and_leaves",
    ],
)
async def test_it_gets_away_with_nothing_and_the_runner_serves_the_next(
    bus: Bus, engine: ScriptedEngine, agent: str
) -> None:
    async with running(bus, entrypoint=f"hostile:{agent}", concurrency=2):
        for number in range(3):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}"))
        batches = await ended(bus, 3)
    for batch in batches:
        assert batch.end is not None
        if agent in ("writes_into_our_connection", "nests_deeply"):
            assert batch.end.outcome == "agent_error" and "wrote into our connection" in batch.end.error
        else:
            assert batch.end.outcome == "ok", batch.end
            assert batch.end.reward == 1.0


async def test_what_a_forked_child_answers_is_not_taken_for_the_next_rollouts(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="hostile:forks"):
        for number in range(4):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"n": number}))
        batches = await ended(bus, 4)
    assert [(batch.task_id, batch.end.reward) for batch in batches if batch.end] == [
        (f"t{n}", float(n)) for n in range(4)
    ]


async def test_memory_is_limited_and_the_next_rollout_starts_fresh(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="hostile:leaks", memory_limit_gib=0.5):
        await TaskPublisher(bus).publish_task(task(id="a", input={}))
        await TaskPublisher(bus).publish_task(task(id="b", input={"calm": True}))
        leaked, after = await ended(bus, 2)
        assert after.end is not None and after.end.outcome == "ok"
        assert leaked.end is not None and leaked.end.outcome == "agent_error", leaked.end
        assert leaked.end.error.endswith("the limit is memory_limit_gib: 0.5"), leaked.end


@pytest.mark.long
async def test_spans_without_end_are_dropped_and_counted(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="hostile:floods"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.num_spans) == ("ok", 20_001)
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task(id="u"))
        (after,) = await ended(bus)
    assert after.end is not None and after.end.outcome == "ok"


async def test_nothing_of_an_agent_that_ignores_sigterm_is_left(bus: Bus, engine: ScriptedEngine) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    async with running(bus, entrypoint="hostile:ignores_sigterm", drain_timeout_seconds=0):
        await TaskPublisher(bus).publish_task(task(deadline=1.0))
        (batch,) = await ended(bus)
        assert batch.end is not None and batch.end.outcome == "timeout"
        await TaskPublisher(bus).publish_task(task(id="u", deadline=600.0))
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.js.consumer_info("TASKS", "runner-default-eval")).num_ack_pending == 0:
                await asyncio.sleep(0.02)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


async def test_a_program_that_prints_no_json_is_an_agent_error(
    bus: Bus, engine: ScriptedEngine, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "import os, sys; sys.stdout.buffer.write(os.urandom(1000))"]
    async with running(bus, command=command, working_dir=tmp_path):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "agent_error" and "no JSON result" in batch.end.error


async def test_an_exception_of_5_mb_is_logged_and_recorded_in_part(
    bus: Bus, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(bus, entrypoint="hostile:raises_5_mb"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.error.startswith("ValueError: xxx") and len(batch.end.error) < 3000
    logged = [line.getMessage() for line in caplog.records if "xxx" in line.getMessage()]
    assert len(logged) == 2 and "in raises_5_mb" in logged[0] and max(map(len, logged)) < 20_000
