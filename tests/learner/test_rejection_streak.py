"""How many groups in a row may give nothing, and what is said and done then."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.rejection_streak import MAX_PAUSE_SECONDS, RejectionStreak
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.tasks import Task
from tests.factories import batches
from tests.learner.conftest import settings_for
from tests.learner.test_gap import finish, learning, take, take_deliveries
from tests.polling import HANG_SECONDS


def test_groups_that_give_nothing_are_counted_until_one_is_trained() -> None:
    streak = RejectionStreak(limit=2)
    for _ in range(2):
        streak.add(1, ["no reward 'checker'", "agent_error"])
    assert (streak.pause, streak.problem) == (0.0, "")
    streak.add(1, ["no reward 'checker'"] * 2)
    assert streak.pause == 1.0
    assert streak.problem == (
        "the last 3 groups gave nothing to train on (4 no reward 'checker', 2 agent_error): "
        "they are tried one by one now"
    )
    for _ in range(100):
        streak.add(1, ["agent_error"])
    assert streak.pause == MAX_PAUSE_SECONDS
    streak.note_ready()
    assert (streak.pause, streak.problem) == (0.0, "")


def test_a_ready_group_ends_no_streak_of_dropped_batches() -> None:
    streak = RejectionStreak(limit=2)
    for _ in range(2):
        streak.note_ready()
        streak.add(2, ["no sequence: 1 too long"] * 4, is_batch=True)
    assert streak.is_too_long
    streak.note_ready()
    assert streak.is_too_long
    streak.end()
    assert not streak.is_too_long


def test_groups_that_fail_by_themselves_end_the_run_and_outages_do_not() -> None:
    streak = RejectionStreak(limit=1, max_groups=3)
    for _ in range(50):
        streak.add(1, ["infra_error"] * 2, is_outage=True)
    assert streak.is_too_long and not streak.verdict
    for _ in range(2):
        streak.add(1, ["agent_error"] * 2, example="a.0: agent_error: KeyError: 'x'")
    assert not streak.verdict
    streak.add(1, ["agent_error"] * 2)
    assert streak.verdict == (
        "the last 53 groups gave nothing to train on (100 infra_error, 6 agent_error); "
        "for example a.0: agent_error: KeyError: 'x': correct that and resume the run, or raise max_failed_groups"
    )
    streak.end()
    assert not streak.verdict


def test_the_bound_is_by_default_beyond_what_is_under_way(model_path: Path) -> None:
    settings = settings_for(model_path, max_staleness=1, groups_per_step=16)
    assert settings.failed_groups_limit == 2 * 16 + 10
    assert settings_for(model_path, max_failed_groups=3).failed_groups_limit == 3


async def finish_without_reward(bus: Bus, tasks: list[Task], outcome: Outcome = "ok", error: str = "") -> None:
    """What a runner says of tasks whose agent gave no reward."""
    for task in tasks:
        for part in batches(task.id, task.sample_index, None, samples=2, outcome=outcome, error=error):
            await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")


async def wait_for_alert(learners: Fleet) -> str:
    while not (alert := next((str(beat.status.get("alert") or "") for beat in learners.members()), "")):
        await learners.wait_for_change()
    return alert


async def test_a_learner_that_gets_no_reward_says_so_and_tries_groups_one_by_one(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(HANG_SECONDS), bus.fleet("learner") as learners, learning(bus, model_path, tmp_path):
        for _ in range(2):  # one more than the bound of one group a step and no lag admits at once
            await finish_without_reward(bus, await take(bus, 2))
        alert = await wait_for_alert(learners)
        assert "learner of policy: the last 2 groups gave nothing to train on (4 no reward)" in alert
        dispatched_at_ns = []
        for _ in range(2):
            messages = await take_deliveries(bus, 2)
            dispatched_at_ns.append(messages[0].timestamp_ns)
            await finish_without_reward(bus, [message.decode_as(Task) for message in messages])
        seconds = (dispatched_at_ns[1] - dispatched_at_ns[0]) / 1e9
        assert seconds > 0.9, "the second pause is of two seconds, from dispatch to dispatch"


async def test_a_learner_whose_rollouts_all_fail_ends_with_the_reasons_and_can_go_on_later(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=2) as running:
        for _ in range(2):
            await finish_without_reward(bus, await take(bus, 2), "agent_error", "KeyError: 'answer'")
        with pytest.raises(LearnerError) as ended:
            await running
    assert "the last 2 groups gave nothing to train on (4 agent_error); for example " in str(ended.value)
    assert ": agent_error: KeyError: 'answer': correct that and resume the run" in str(ended.value)
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=2) as running:
        await finish_without_reward(bus, await take(bus, 2), "agent_error")
        await finish(bus, await take(bus, 2))
        await running


@pytest.mark.parametrize("outcome", ["infra_error", "poison"])
async def test_a_learner_waits_for_the_end_of_an_outage(
    bus: Bus, model_path: Path, tmp_path: Path, outcome: Outcome
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=1) as running:
        for _ in range(2):
            await finish_without_reward(bus, await take(bus, 2), outcome, "no node answered")
        await finish(bus, await take(bus, 2))
        await running


async def finish_without_call(bus: Bus, tasks: list[Task]) -> None:
    """Publish the ends of tasks whose agent gave a reward and called no model."""
    for task in tasks:
        (part,) = batches(task.id, task.sample_index, float(task.sample_index), samples=2, parts=1)
        assert part.end is not None
        part = replace(part, spans=(), end=replace(part.end, num_spans=0))
        await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")


async def test_a_learner_whose_rollouts_ask_no_model_ends_with_what_to_do(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=2) as running:
        for _ in range(2):
            await finish_without_call(bus, await take(bus, 2))
        with pytest.raises(LearnerError) as ended:
            await running
    assert str(ended.value) == (
        "the last 2 groups gave nothing to train on (4 no sequence: no model call); the agent's client must call the "
        "base URL that it gets, in OPENAI_BASE_URL or ANTHROPIC_BASE_URL: correct that and resume the run, or raise "
        "max_failed_groups"
    )


def test_groups_that_call_no_model_are_not_waited_for_longer_and_longer() -> None:
    streak = RejectionStreak(limit=2, max_groups=12)
    for _ in range(11):
        streak.add(1, ["no sequence: no model call"] * 2, is_batch=True)
    assert streak.pause == 1.0 and not streak.verdict
    streak.add(1, ["agent_error", "no sequence: no model call"])
    assert streak.pause == MAX_PAUSE_SECONDS
    assert "OPENAI_BASE_URL" not in streak.verdict
