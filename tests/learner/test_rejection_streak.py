"""How many groups in a row may give nothing, and what is said and done then."""

import asyncio
from pathlib import Path

from bus.client import Bus
from bus.fleet.heartbeats import Fleet
from learner.rollouts.rejection_streak import MAX_PAUSE_SECONDS, RejectionStreak
from schemas import subjects
from schemas.tasks import Task
from tests.factories import batches
from tests.learner.test_gap import learning, take, take_deliveries
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


async def finish_without_reward(bus: Bus, tasks: list[Task]) -> None:
    """What a runner says of tasks whose agent gave no reward."""
    for task in tasks:
        for part in batches(task.id, task.sample_index, None, samples=2):
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
            deliveries = await take_deliveries(bus, 2)
            dispatched_at_ns.append(deliveries[0].timestamp_ns)
            await finish_without_reward(bus, [delivery.decode_as(Task) for delivery in deliveries])
        seconds = (dispatched_at_ns[1] - dispatched_at_ns[0]) / 1e9
        assert seconds > 0.9, "the second pause is of two seconds, from dispatch to dispatch"
