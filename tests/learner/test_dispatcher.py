"""What is dispatched, in which order, and again after a restart, against a real broker."""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.client import Bus
from bus.streams import runner_consumer
from bus.task_file import TaskInput
from common.aio import cancel_and_wait
from learner.rollouts.dispatcher import Dispatcher
from learner.rollouts.task_order import TaskOrder
from learner.settings.learner import LearnerSettings
from schemas.tasks import Task


def settings(**changes: Any) -> LearnerSettings:
    return LearnerSettings(
        model_path=Path("model"),
        **{"group_size": 2, "groups_per_step": 2, "max_staleness": 1, "max_steps": 1000, **changes},
    )


def problems(count: int) -> list[TaskInput]:
    return [TaskInput(str(number), number) for number in range(count)]


async def tasks_of(bus: Bus, count: int) -> list[Task]:
    """The next tasks in the queue, each of them done."""
    async with asyncio.timeout(30), bus.pull(runner_consumer("default", "train"), slots=count) as puller:
        tasks = []
        for _ in range(count):
            delivery = await anext(puller)
            tasks.append(delivery.decode_as(Task))
            await delivery.ack(sync=True)
        return tasks


async def test_a_pass_is_shuffled_once_and_off_the_event_loop(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffles: list[int] = []
    shuffle = random.Random.shuffle

    def counted(self: random.Random, items: Any) -> None:
        shuffles.append(threading.get_ident())
        shuffle(self, items)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(1_000), settings(staleness={"order": "dispatch"}), 800)
    dispatcher.update_limit(398, 8)
    dispatching = asyncio.create_task(dispatcher.run())
    try:
        assert [task.sample_index for task in await tasks_of(bus, 16)] == [0, 1] * 8
    finally:
        await cancel_and_wait(dispatching)
    assert len(shuffles) == 1 and threading.get_ident() not in shuffles


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.integers(0, 200), min_size=1))
def test_a_restart_at_any_place_goes_on_in_the_same_order(count: int, seed: int, places: list[int]) -> None:
    """Whatever was asked for before; and in the order that runs of earlier releases began with."""
    passes = TaskOrder(count, seed)
    for place in places:
        number, index = passes.at(place)
        order = list(range(count))
        random.Random(f"{seed}:{number}").shuffle(order)
        assert (number, index) == (place // count, order[place % count])
        assert TaskOrder(count, seed).at(place) == (number, index)


async def test_groups_that_were_outstanding_at_a_restart_are_waited_for_in_their_order(bus: Bus) -> None:
    """Also where more groups have been closed since the start than the learner remembers."""
    before = Dispatcher(bus, problems(5), settings(staleness={"order": "dispatch"}), 100_000)
    await before.restore([50_003, 99_998])
    before.release(["nobody"])
    assert before.outstanding == [50_003, 99_998] and len(before.dispatch_order) == 2
    again = Dispatcher(bus, problems(5), settings(staleness={"order": "dispatch"}), 100_000)
    await again.restore(before.outstanding)
    assert [*again.dispatch_order] == [*before.dispatch_order]
    before.release([next(iter(before.dispatch_order))])
    assert before.outstanding == [99_998]


async def test_what_the_bus_lost_is_dispatched_again_and_what_has_ended_is_not(bus: Bus) -> None:
    """Under message ids of their own: the broker may still know those of the tasks it lost."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(5), settings(max_steps=3, groups_per_step=1, max_staleness=2), 0)
    dispatcher.update_limit(0, 0)
    dispatching = asyncio.create_task(dispatcher.run())
    try:
        first = await tasks_of(bus, 6)
        item, two, three = dict.fromkeys(task.id for task in first)
        assert dispatcher.dispatch_again({item: {0}}, {two}, "gap") == 3
        again = await tasks_of(bus, 3)
        assert [(task.id, task.sample_index) for task in again] == [(item, 1), (three, 0), (three, 1)]
        assert again == [task for task in first if (task.id, task.sample_index) in {(item, 1), (three, 0), (three, 1)}]
        assert dispatcher.outstanding == [0, 1, 2]
    finally:
        await cancel_and_wait(dispatching)
