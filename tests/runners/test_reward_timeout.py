"""A reward function that does not end costs its own rollout alone, and the agent is not blamed."""

import asyncio
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.assembler import training_reward
from lightningbus.runners.agent.turns import Turns
from lightningbus.schemas import subjects
from lightningbus.schemas.spans import AttemptResult
from lightningbus.schemas.trajectory.attempt_selection import Resolution, resolution_of
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import rollout
from tests.runners.conftest import ended, running, task

SHARED = {"entrypoint": "graders:solve_beside_others", "max_concurrent_per_process": 4}
ALONE = {"entrypoint": "graders:solve", "concurrency": 4}


async def grade(bus: Bus, deadline: float = 20.0, num_hung: int = 1, **settings: Any) -> dict[str, list[AttemptResult]]:
    """Results of rollouts, by whether their reward function hangs."""
    answers = ["hang"] * num_hung + ["good"] * (4 - num_hung)
    async with running(bus, **{"concurrency": 4, **settings}):
        for number, answer in enumerate(answers):
            fields = {"id": f"{answer}{number}", "input": {"answer": answer}, "deadline": deadline}
            await TaskPublisher(bus).publish_task(task(**fields))
        batches = await ended(bus, 4, final=None, timeout=120)
    ends: dict[str, list[AttemptResult]] = {"hang": [], "good": []}
    for batch in batches:
        assert batch.end is not None
        ends[batch.task_id[:4]].append(batch.end)
    return ends


@pytest.mark.parametrize(
    ("function", "agent"),
    [
        ("sleeps", ALONE),
        ("sleeps", SHARED),
        ("waits", ALONE),
        pytest.param("waits", SHARED, marks=pytest.mark.long),
        ("blocks", SHARED),
        pytest.param("is_deaf", SHARED, marks=pytest.mark.long),
        pytest.param("sleeps", {**SHARED, "max_concurrent_per_process": 2}, marks=pytest.mark.long),
    ],
)
async def test_a_reward_function_that_hangs_costs_its_own_rollout_alone(
    bus: Bus, function: str, agent: dict[str, Any]
) -> None:
    ends = await grade(bus, **agent, reward_fn=f"graders:{function}", reward_timeout_seconds=2.0)
    assert [(end.outcome, end.reward) for end in ends["good"]] == [("ok", 1.0)] * 3, ends["good"]
    (hung,) = ends["hang"]
    assert (hung.outcome, hung.reward, hung.rewards) == ("reward_timeout", None, {})
    assert hung.error == "the reward function did not end in 2 s" and hung.is_final
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 0


async def test_the_time_for_which_rollouts_wait_for_others_to_be_graded_is_not_theirs(bus: Bus) -> None:
    """Nor does grading count against the deadline of the agent."""
    settings = {**SHARED, "reward_fn": "graders:sleeps", "reward_timeout_seconds": 3.0}
    ends = await grade(bus, deadline=4.0, num_hung=2, **settings)
    assert [end.outcome for end in ends["good"]] == ["ok"] * 2, ends["good"]
    assert [end.outcome for end in ends["hang"]] == ["reward_timeout"] * 2, ends["hang"]


async def test_a_reward_function_that_ends_its_process_costs_its_own_rollout_alone(bus: Bus) -> None:
    settings = {**SHARED, "reward_fn": "graders:ends_its_process"}
    ends = await grade(bus, **settings)
    assert [(end.outcome, end.reward) for end in ends["good"]] == [("ok", 1.0)] * 3, ends["good"]
    (died,) = ends["hang"]
    assert died.outcome == "infra_error" and died.error == "the reward function is gone: its process ended with 3"


def test_a_rollout_without_a_grade_is_never_a_reward_of_zero() -> None:
    ungraded = rollout("t", 0, None, outcome="reward_timeout")
    assert training_reward(ungraded, "zero") is None and training_reward(ungraded, "mask") is None
    end = AttemptResult(outcome="reward_timeout", num_spans=1, started_ns=0, ended_ns=1)
    assert resolution_of(end) is Resolution.FINAL


async def test_turns_are_shared_until_one_is_taken_alone() -> None:
    turns, seen = Turns(), list[str]()

    async def take(name: str, alone: bool = False) -> None:
        async with turns.alone() if alone else turns.shared():
            seen.append(f"{name} begins")
            await asyncio.sleep(0.02)
            seen.append(f"{name} ends")

    first, second = asyncio.create_task(take("first")), asyncio.create_task(take("second"))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(take("alone", alone=True)), asyncio.create_task(take("last"))]
    given_up = asyncio.create_task(take("given up", alone=True))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(first, second, *rest)
    assert seen[:2] == ["first begins", "second begins"] and set(seen[2:4]) == {"first ends", "second ends"}
    assert seen[4:] == ["alone begins", "alone ends", "last begins", "last ends"]
