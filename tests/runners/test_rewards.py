"""The reward function has a process of its own, which the agent it judges cannot reach."""

import asyncio

import pytest

from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.assembler import training_reward
from lightningbus.runners import runner
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.settings import RunnerSettings
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import rollout
from tests.polling import HANG_SECONDS
from tests.runners.conftest import AGENTS, ended, running, task


@pytest.mark.parametrize(
    "agent",
    [
        {"entrypoint": "plain:rewrites_its_reward"},
        {"entrypoint": "plain:rewrites_its_reward_beside_others", "max_concurrent_per_process": 2},
    ],
)
async def test_an_agent_that_rewrites_its_reward_function_is_rewarded_by_the_original(
    bus: Bus, agent: dict[str, object]
) -> None:
    async with running(bus, **agent, reward_fn="plain:half", concurrency=2):
        for number in range(4):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"n": 1}))
        batches = await ended(bus, 4)
    assert [(batch.end.outcome, batch.end.reward) for batch in batches if batch.end] == [("ok", 0.0)] * 4


async def test_a_reward_function_has_its_own_process_the_task_as_it_came_and_no_key_of_the_agents(bus: Bus) -> None:
    async with running(bus, entrypoint="plain:rewrites_its_task", reward_fn="plain:reward_sees"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end


@pytest.mark.parametrize(
    ("reward", "why"), [("plain:hlaf", "no attribute 'hlaf'"), ("rewards:half", "No module named")]
)
async def test_a_reward_function_that_cannot_be_loaded_is_said_at_start(bus: Bus, reward: str, why: str) -> None:
    with pytest.raises(AgentStartError, match=f"reward function {reward} cannot be loaded .*{why}"):
        async with asyncio.timeout(HANG_SECONDS):
            await runner.run(
                bus, RunnerSettings(entrypoint="plain:asks", reward_fn=reward, working_dir=AGENTS), asyncio.Event()
            )


async def test_what_a_reward_function_fails_at_names_it(bus: Bus) -> None:
    async with running(bus, entrypoint="plain:answers", reward_fn="plain:reward_that_raises"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "grading_failed"
    assert batch.end.error == "the reward function failed: ValueError: cannot score 1.0"
    failed = rollout("t", 0, batch.end.reward, outcome=batch.end.outcome)
    assert training_reward(failed, "zero") is None, "the agent did nothing wrong"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("good", "a reward is a number, not 'good'"),
        (None, "a reward is a number, not 'None'"),
        ({"rewards": {"tests": [1]}}, "the reward 'tests' is a number, not '[1]'"),
    ],
)
async def test_what_a_reward_function_returns_is_not_the_agents_error(bus: Bus, answer: object, why: str) -> None:
    async with running(bus, entrypoint="graders:solve", reward_fn="graders:returns_what_it_got"):
        await TaskPublisher(bus).publish_task(task(input={"answer": answer}))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "grading_failed"
    assert batch.end.error == f"the reward function failed: {why}"


@pytest.mark.parametrize("function", ["runs_loops", "gives_a_coroutine"])
@pytest.mark.parametrize(
    "agent",
    [{"entrypoint": "graders:solve"}, {"entrypoint": "graders:solve_beside_others", "max_concurrent_per_process": 2}],
)
async def test_a_reward_function_that_is_not_async_runs_where_it_may_start_a_loop(
    bus: Bus, agent: dict[str, object], function: str
) -> None:
    async with running(bus, **agent, reward_fn=f"graders:{function}", concurrency=2):
        for number in range(4):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"answer": "good"}))
        batches = await ended(bus, 4)
    assert [(batch.end.outcome, batch.end.reward) for batch in batches if batch.end] == [("ok", 1.0)] * 4


async def test_a_reward_function_that_dies_is_not_the_agents_error(bus: Bus) -> None:
    async with running(bus, entrypoint="plain:answers", reward_fn="plain:reward_that_dies"):
        await TaskPublisher(bus).publish_task(task(max_attempts=1))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "infra_error"
    assert batch.end.error == "the reward function is gone: its process ended with 9"


async def test_a_result_for_a_reward_function_is_json(bus: Bus) -> None:
    async with running(bus, entrypoint="plain:returns_an_object", reward_fn="plain:half"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.error) == (
        "agent_error",
        "TypeError: a object is not JSON",
    )
