"""An evaluation whose rollouts fail says how many, and why."""

from pathlib import Path
from typing import Any

import pytest

from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import describe_missing_reward, evaluate
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.tasks.task_loading import TaskInput
from tests.optimize.conftest import world_of
from tests.store.conftest import Start
from tests.store.conftest import start_store as start_store

pytestmark = pytest.mark.integration


async def test_the_most_frequent_error_is_kept_with_the_evaluation(bus: Bus, nats_url: str, start_store: Start) -> None:
    right: dict[str, Any] = {"number": "1", "right": "1"}
    async with world_of(bus, nats_url, start_store, "notes") as world:

        async def answer(run: str, inputs: list[dict[str, Any]], reward: str = "", pass_reward: float = 1.0) -> Any:
            problems = [TaskInput(f"p{number}", fields) for number, fields in enumerate(inputs)]
            request = RolloutRequest(
                run=run,
                evaluation="greedy",
                weight_versions={"policy": 3},
                agent="notes",
                reward=reward,
                pass_reward=pass_reward,
            )
            return await evaluate(bus, world.store.sql, request, problems)

        failed = await answer("bad", [{}, {}])
        assert (failed.ok, failed.rollouts) == (0, 2)
        assert failed.failures.startswith("2 of 2 rollouts failed: agent_error: ") and "KeyError" in failed.failures
        mixed = await answer("mixed", [{}, right])
        assert mixed.failures.startswith("1 of 2 rollouts failed: agent_error: ")
        assert {k: each.mean for k, each in mixed.pass_at.items()} == {1: 0.5}, "a failed answer has not passed"
        good = await answer("good", [right])
        assert good.failures == good.pass_note == failed.pass_note == ""
        strict = await answer("strict", [right, {}], pass_reward=2.0)
        assert strict.pass_note == "none is 2 or more; rewards are 1 to 1"
        unnamed = await answer("named", [right], "style")
        assert (unnamed.mean_reward, unnamed.ok, unnamed.reward) == (0.0, 1, "style"), (
            "it is given in some answers alone"
        )


async def test_rollouts_that_a_cache_of_the_client_answers_are_named(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    problems = [TaskInput(f"p{number}", {"number": "1", "right": "1"}) for number in range(3)]
    request = RolloutRequest(evaluation="greedy", weight_versions={"policy": 3}, agent="cached")
    async with world_of(bus, nats_url, start_store, "cached", entrypoint="prompted:cached_notes") as world:
        evaluation = await evaluate(bus, world.store.sql, request, problems)
    assert (evaluation.ok, evaluation.num_without_call, len(world.node.requests)) == (3, 2, 1)
    (warning,) = EvaluationResult(Path("runs/x"), {"greedy": evaluation})._list_notes()
    assert warning.startswith("greedy: 2 of 3 rollouts called no model: ") and warning.endswith("turn the cache off")
    assert evaluation.model_copy(update={"num_without_call": 0}).describe_without_call() == ""


def test_a_reward_that_no_rollout_has_counts_as_0_unless_it_is_misspelt() -> None:
    described = describe_missing_reward("hard-greedy", "humble", 12, ["correct", "bonus"])
    assert described == (
        "evaluation hard-greedy: none of 12 rollouts has a reward with the name 'humble', so each counts as 0; "
        "they have bonus, correct"
    )
    assert describe_missing_reward("greedy", "humble", 3, []).endswith("they have none by name")
    with pytest.raises(
        UserError, match="none of 12 rollouts has a reward with the name 'corect'; did you mean 'correct'"
    ):
        describe_missing_reward("greedy", "corect", 12, ["correct", "bonus"])


@pytest.mark.parametrize("num_hung", [1, pytest.param(3, marks=pytest.mark.long)])
async def test_an_agent_that_hangs_counts_as_0_and_the_evaluation_goes_on(
    bus: Bus, nats_url: str, start_store: Start, num_hung: int
) -> None:
    inputs: list[dict[str, Any]] = [{"hangs": True}] * num_hung + [{"number": "1", "right": "1"}]
    problems = [TaskInput(f"p{number}", fields) for number, fields in enumerate(inputs)]
    async with world_of(bus, nats_url, start_store, "notes") as world:
        request = RolloutRequest(
            evaluation="greedy", weight_versions={"policy": 3}, agent="notes", deadline=40.0, rollout_timeout=2.0
        )
        evaluation = await evaluate(bus, world.store.sql, request, problems)
    assert (evaluation.ok, evaluation.rollouts, evaluation.mean_reward) == (1, 1 + num_hung, 1 / (1 + num_hung))
    assert f"{num_hung} of {1 + num_hung} rollouts failed: timeout: the agent did not end" in evaluation.failures


async def test_an_evaluation_whose_rollouts_nobody_takes_is_given_up(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    request = RolloutRequest(
        evaluation="greedy", weight_versions={"policy": 3}, agent="nobody", deadline=1.0, rollout_timeout=0.5
    )
    store = start_store(nats_url, flush_interval_seconds=0.05)
    with pytest.raises(UserError) as raised:
        await evaluate(bus, store.sql, request, [TaskInput("p0", {})])
    assert str(raised.value) == (
        "evaluation greedy of version 3: 0 of 1 rollouts ended, and none in the last 1.5 s: "
        "`lightningbus status` says what is up; or raise eval.deadline"
    )
    store.until("SELECT count() FROM tasks", 1)
