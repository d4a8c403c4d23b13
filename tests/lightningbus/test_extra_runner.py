"""A runner for one evaluation of a run that is up: it ends with the evaluation, and leaves nothing on the bus."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import runner_consumers
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.jobs.extra_runner import with_extra_runner
from lightningbus.run.processes.members import is_extra_runner
from lightningbus.run.results.results import COUNTS, UNFINISHED
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.clickhouse.client import query_row
from lightningbus.tasks.task_loading import TaskInput
from tests.commands import ROOT
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start
from tests.store.conftest import start_store as start_store

TASKS = [TaskInput(f"p{number}", {"question": "1"}) for number in range(3)]
AGENT = RunnerSettings(
    entrypoint="steady:solve",
    working_dir=ROOT / "tests" / "agents",
    concurrency=1,
    drain_timeout_seconds=0,
    inference_api_key_file=None,
)
"""It waits for a node, and there is none."""


@pytest.fixture
def directory(tmp_path: Path, nats_url: str) -> RunDirectory:
    """A run that is up: a bus, and this process."""
    run = RunDirectory(tmp_path / "run").create()
    run.write_endpoints(Endpoints(os.getpid(), nats_url))
    return run


def request(agent: str) -> RolloutRequest:
    return RolloutRequest(agent=agent, evaluation="early", nonce=agent)


async def publish(bus: Bus, agent: str) -> tuple[int, int]:
    """Numbers of tasks that are new on the bus, and of those that were there."""
    tasks = request(agent).tasks(TASKS)
    return await publish_all(bus, tasks, HANG_SECONDS, on_done=lambda: None, nonce=agent)


@pytest.mark.integration
async def test_an_evaluation_that_is_given_up_leaves_no_task_and_no_durable(directory: RunDirectory, bus: Bus) -> None:
    agents = []

    async def give_up(agent: str) -> None:
        agents.append(agent)
        assert await publish(bus, agent) == (len(TASKS), 0), "also those that were published and given up"
        assert len(await bus.consumer_names(subjects.TASKS)) == 2
        raise UserError("enough")

    for _ in range(2):
        with pytest.raises(UserError, match="enough"):
            await with_extra_runner(directory, bus, AGENT, give_up)
        assert (await bus.stream_state(subjects.TASKS)).num_messages == 0
        assert await bus.consumer_names(subjects.TASKS) == []
    assert agents[0] != agents[1]


@pytest.mark.integration
async def test_two_evaluations_with_the_same_agent_have_a_runner_each(directory: RunDirectory, bus: Bus) -> None:
    both = asyncio.Barrier(2)

    async def meet(agent: str) -> set[str]:
        async with asyncio.timeout(HANG_SECONDS):
            await both.wait()
            names = {path.stem for path in (directory.path / "work").iterdir()}
            await both.wait()
        return names

    names = await asyncio.gather(*(with_extra_runner(directory, bus, AGENT, meet) for _ in range(2)))
    assert names[0] == names[1] and len(names[0]) == 2
    assert not list((directory.path / "work").iterdir())


@pytest.mark.integration
async def test_nobody_waits_for_rollouts_that_were_given_up(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = start_store(nats_url, flush_interval_seconds=0.05)
    for agent in ("evaluation-0123456789ab-01234567", "evaluation"):
        for consumer in runner_consumers(agent):
            await bus.ensure_consumer(consumer)
    await publish(bus, "evaluation-0123456789ab-01234567")
    store.until("SELECT count() FROM tasks", len(TASKS))
    parameters = {"run_id": "run"}
    assert query_row(store.sql, COUNTS["rollouts_lost"], parameters) == (0,)
    assert query_row(store.sql, UNFINISHED, parameters) == (len(TASKS),)
    await publish_all(
        bus, RolloutRequest(agent="evaluation", id_parts=("b",)).tasks(TASKS), HANG_SECONDS, on_done=lambda: None
    )
    store.until("SELECT count() FROM tasks", 2 * len(TASKS))
    assert query_row(store.sql, COUNTS["rollouts_lost"], parameters) == (len(TASKS),)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("fields", "is_extra"),
    [
        ({}, True),
        ({"state": "done"}, False),
        ({"role": "grader"}, False),
        ({"id": "runner-0"}, False),
        ({"id": "runner-evaluation-of-mine"}, False),
    ],
)
def test_who_is_an_extra_runner(fields: dict[str, Any], is_extra: bool) -> None:
    beat = {"role": "runner", "id": "runner-evaluation-0123456789ab-01234567", "state": "running", **fields}
    assert is_extra_runner(Heartbeat(**beat, sent_at_ns=0)) == is_extra
