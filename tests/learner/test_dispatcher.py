"""What is dispatched, in which order, and again after a restart, against a real broker."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.dispatch.dispatcher import MAX_REPLACEMENTS, Dispatcher
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.dispatch.task_queue import TaskQueue
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.tasks import Task, TaskBatchRecord
from lightningbus.schemas.training import DispatchMark
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import rollout
from tests.polling import HANG_SECONDS


def settings(**changes: Any) -> LearnerSettings:
    return LearnerSettings(
        model_path=Path("model"),
        **{"group_size": 2, "groups_per_step": 2, "max_staleness": 1, "max_steps": 1000, **changes},
    )


def problems(count: int) -> list[TaskInput]:
    return [TaskInput(str(number), number) for number in range(count)]


@asynccontextmanager
async def dispatching(dispatcher: Dispatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def tasks_of(bus: Bus, count: int) -> list[Task]:
    """The next tasks in the queue, each of them done."""
    async with asyncio.timeout(HANG_SECONDS), bus.pull(runner_consumer("default", "train"), slots=count) as puller:
        tasks = []
        for _ in range(count):
            message = await anext(puller)
            tasks.append(message.decode_as(Task))
            await message.ack(sync=True)
        return tasks


async def test_a_pass_is_shuffled_once_and_off_the_event_loop(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffles: list[int] = []
    shuffle = random.Random.shuffle

    def counted(self: random.Random, items: Any) -> None:
        shuffles.append(threading.get_ident())
        shuffle(self, items)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(1_000), settings(groups_per_step=4), 800)
    dispatcher.advance(200, 200)
    async with dispatching(dispatcher):
        assert [task.sample_index for task in await tasks_of(bus, 16)] == [0, 1] * 8
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


async def test_groups_that_were_outstanding_at_a_restart_are_restored_in_their_order(bus: Bus) -> None:
    """Also where more groups have been closed since the start than the learner remembers."""
    before = Dispatcher(bus, problems(5), settings(), 100_000)
    groups = [
        DispatchedGroup(number=50_003, served_version=7, is_published=True),
        DispatchedGroup(number=3, replacement=2, served_version=8, is_published=True),
        DispatchedGroup(number=99_998, served_version=9),
    ]
    await before.restore(groups)
    before.advance(0, 0, ["nobody"])
    assert before.outstanding() == groups, "the last may be half published: its tokens may be of that version"
    again = Dispatcher(bus, problems(5), settings(), 100_000)
    await again.restore(before.outstanding())
    assert [*again.outstanding_tasks] == [*before.outstanding_tasks] and len(again.outstanding_tasks) == 3
    before.advance(1, 1, [next(iter(before.outstanding_tasks))])
    assert [group.number for group in before.outstanding()] == [3, 99_998]


async def test_a_group_that_a_replay_has_closed_is_not_dispatched(bus: Bus) -> None:
    """The learner went back to an older checkpoint, and rollouts of later tasks are on the bus still."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    probe = Dispatcher(bus, problems(8), settings(), 0)
    await probe.restore([DispatchedGroup(number=number) for number in range(4)])
    names = [*probe.outstanding_tasks]
    closed = {names[1], names[2]}
    dispatcher = Dispatcher(bus, problems(8), settings(), 0, closed=closed)
    dispatcher.advance(0, 0)
    async with dispatching(dispatcher):
        dispatched = [task.id for task in await tasks_of(bus, 4)]
    assert dispatched[:4:2] == [names[0], names[3]]
    assert closed.isdisjoint(dispatcher.outstanding_tasks), "nobody would train them, so they would never leave"


@pytest.mark.parametrize("replacement", [0, 1])
async def test_a_group_that_a_replay_has_closed_has_its_record(bus: Bus, replacement: int) -> None:
    """The learner ended between a group's tasks and their record, and its rollouts have ended since."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    group = DispatchedGroup(number=0, replacement=replacement)
    probe = Dispatcher(bus, problems(8), settings(), 0)
    await probe.restore([group])
    (name,) = probe.outstanding_tasks
    dispatcher = Dispatcher(bus, problems(8), settings(), replacement, closed={name})
    await dispatcher.restore([group] if replacement else [])
    dispatcher.advance(0, 0)
    recorded: set[str] = set()
    async with dispatching(dispatcher), asyncio.timeout(HANG_SECONDS), bus.pull(STORE_EVENTS, slots=8) as puller:
        while name not in recorded:
            event = (await anext(puller)).event()
            if isinstance(event, TaskBatchRecord):
                recorded |= {record.task.id for record in event.tasks}


async def test_what_the_bus_lost_is_dispatched_again_and_what_has_ended_is_not(bus: Bus) -> None:
    """Under message ids of their own: the broker may still know those of the tasks it lost."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    closed: set[str] = set()
    limits = settings(max_steps=3, groups_per_step=1, max_staleness=2)
    dispatcher = Dispatcher(bus, problems(5), limits, closed=closed)
    async with dispatching(dispatcher):
        first = await tasks_of(bus, 6)
        slow, two, three = dict.fromkeys(task.id for task in first)
        closed.add(two)
        assert dispatcher.dispatch_again({slow: {0}}, "gap") == 3
        again = await tasks_of(bus, 3)
        assert [(task.id, task.sample_index) for task in again] == [(slow, 1), (three, 0), (three, 1)]
        assert again == [task for task in first if (task.id, task.sample_index) in {(slow, 1), (three, 0), (three, 1)}]
        assert [group.number for group in dispatcher.outstanding()] == [0, 1, 2]


async def restore_four_groups(bus: Bus, max_staleness: int) -> Dispatcher:
    """Make a dispatcher that goes on with four groups on the bus, of one task each."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    limits = settings(max_steps=9, groups_per_step=1, max_staleness=max_staleness)
    dispatcher = Dispatcher(bus, problems(9), limits, 4, served_version=lambda: 5)
    dispatcher.advance(0, 5)
    groups = [DispatchedGroup(number=number, served_version=0, is_published=True) for number in range(4)]
    await dispatcher.restore(groups)
    return dispatcher


async def test_of_more_lost_groups_than_the_bound_admits_the_newest_wait_for_it(bus: Bus) -> None:
    """A learner that goes on from an older checkpoint has more groups outstanding than the bound admits."""
    dispatcher = await restore_four_groups(bus, max_staleness=1)
    names = [*dispatcher.outstanding_tasks]
    assert dispatcher.dispatch_again({}, "gap") == 4
    async with dispatching(dispatcher):
        again = await tasks_of(bus, 4)
        assert [task.id for task in again] == [name for name in names[:2] for _ in range(2)]
        versions = [group.served_version for group in dispatcher.outstanding()]
        assert versions == [0, 0, None, None] and dispatcher.is_behind
        for step in (1, 2):
            dispatcher.advance(step, 5, [names[step - 1]])
            again = await tasks_of(bus, 2)
            assert [task.id for task in again] == [names[step + 1]] * 2, "one goes out for each that is trained"
        await eventually(lambda: not dispatcher.is_behind)


async def test_groups_that_a_second_loss_takes_back_are_not_published_for_the_first(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = await restore_four_groups(bus, max_staleness=3)
    names = [*dispatcher.outstanding_tasks]
    assert dispatcher.dispatch_again({}, "first") == 8
    monkeypatch.setattr(type(dispatcher._bound), "num_groups", lambda bound: 2)
    assert dispatcher.dispatch_again({}, "second") == 4
    async with dispatching(dispatcher):
        again = await tasks_of(bus, 8)
    assert {task.id for task in again} == set(names[:2])


async def test_tasks_on_their_way_when_the_bus_loses_messages_are_dispatched_again_too(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus may have lost them before it said that it has them."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(2), settings(groups_per_step=1, max_staleness=0))
    publish_tasks, has_published, may_return = TaskPublisher.publish_tasks, asyncio.Event(), asyncio.Event()

    async def publish_slowly(self: TaskPublisher, *args: Any, **kwargs: Any) -> int:
        num_new = await publish_tasks(self, *args, **kwargs)
        has_published.set()
        await may_return.wait()
        return num_new

    monkeypatch.setattr(TaskPublisher, "publish_tasks", publish_slowly)
    async with dispatching(dispatcher):
        first = await tasks_of(bus, 2)
        await has_published.wait()
        assert dispatcher.dispatch_again({}, "gap") == 2
        may_return.set()
        assert await tasks_of(bus, 2) == first
        await eventually(lambda: not dispatcher.is_behind)
        assert len(dispatcher.outstanding_tasks) == 1


async def test_tasks_are_dispatched_as_runners_take_them_and_no_sooner(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the queue is sampled late by newer weights, and an evaluation waits behind it."""
    is_full = asyncio.Event()
    has_room = TaskQueue.has_room

    async def watched(self: TaskQueue, size: int) -> bool | None:
        room = await has_room(self, size)
        if room is False:
            is_full.set()
        return room

    monkeypatch.setattr(TaskQueue, "has_room", watched)
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(9), settings(groups_per_step=4))
    async with dispatching(dispatcher), asyncio.timeout(HANG_SECONDS):
        await is_full.wait()
        assert dispatcher.num_dispatched == 1, "eight groups are admitted, but nobody takes the tasks of the first"
        await tasks_of(bus, 16)
        await eventually(lambda: dispatcher.num_dispatched == 8)


async def test_without_runners_the_tasks_of_a_step_wait_in_the_queue(bus: Bus) -> None:
    """So that whoever starts runners by the length of the queue starts some."""
    dispatcher = Dispatcher(bus, problems(9), settings(groups_per_step=3))
    async with dispatching(dispatcher):
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.stream_state(subjects.TASKS)).num_messages < 6:
                await asyncio.sleep(0.01)
        await bus.ensure_consumer(runner_consumer("default", "train"))
        await eventually(lambda: dispatcher.num_dispatched == 3)
        await tasks_of(bus, 12)
        await eventually(lambda: dispatcher.num_dispatched == 6)


async def test_a_synchronous_run_dispatches_once_the_version_is_served(bus: Bus) -> None:
    """Tasks that go out while nodes still swap would be answered by the version before."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    served = 0
    limits = settings(max_staleness=0, groups_per_step=1)
    dispatcher = Dispatcher(bus, problems(9), limits, served_version=lambda: served)
    async with dispatching(dispatcher):
        (task, _) = await tasks_of(bus, 2)
        await eventually(lambda: dispatcher.num_dispatched == 1)
        dispatcher.advance(1, 1, [task.id])
        for _ in range(100):  # whatever wakes it
            dispatcher.wake()
            await asyncio.sleep(0)
        assert dispatcher.num_dispatched == 1 and dispatcher.missing_version == 1
        served = 1
        dispatcher.wake()
        await tasks_of(bus, 2)
        assert [group.served_version for group in dispatcher.outstanding()] == [1]


async def test_a_paused_set_has_one_open_group_and_its_turns_pass_to_the_others(bus: Bus, tmp_path: Path) -> None:
    await bus.ensure_consumer(runner_consumer("default", "train"))
    sets = [{"name": name, "path": str(tmp_path / f"{name}.jsonl")} for name in ("math", "code")]
    inputs = [TaskInput(f"{name}/{number}", number) for name in ("math", "code") for number in range(4)]
    closed: dict[str, None] = {}
    records: list[DispatchedGroup] = []
    dispatcher = Dispatcher(
        bus, inputs, settings(tasks=sets, groups_per_step=8, max_staleness=0), closed=closed,
        record=lambda group, num_by_others: records.append(replace(group)),
    )  # fmt: skip
    dispatcher.advance(0, 0)
    dispatcher.limit_rates({"math": 30.0})
    async with dispatching(dispatcher):
        tasks = [task.id for task in (await tasks_of(bus, 10))[::2]]
        assert [task.partition("/")[0] for task in tasks] == ["math", "code", "code", "code", "code"]
        assert {record.number for record in records if record.served_version is None} >= {2, 4}, "their turns passed"
        closed[tasks[0]] = None
        await dispatcher.replace_dropped(tasks[:1])
        (waiting,) = [group for group in dispatcher.outstanding() if group.served_version is None]
        assert waiting.replacement == 1
        dispatcher.limit_rates({})
        assert (await tasks_of(bus, 2))[0].id == f"{tasks[0]}r1"


async def test_a_group_that_came_to_nothing_is_replaced_by_the_same_task(bus: Bus) -> None:
    """By another one only if it always comes to nothing: hard tasks must not be left out."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(9), settings(max_staleness=0, groups_per_step=1))
    async with dispatching(dispatcher):
        names = []
        for _ in range(MAX_REPLACEMENTS + 2):
            names.append((await tasks_of(bus, 2))[0].id)
            await dispatcher.replace_dropped([names[-1]])
        first = names[0]
        assert names[:-1] == [first, *(f"{first}r{count}" for count in range(1, MAX_REPLACEMENTS + 1))]
        assert names[-1].partition("@")[0] != first.partition("@")[0]


def test_a_group_is_waited_for_as_long_as_its_tasks_may_be_tried() -> None:
    assert settings(rollout_timeout_seconds=300, max_attempts=2).max_group_seconds > 2 * 300
    assert settings(rollout_timeout_seconds=300, group_timeout_seconds=300).max_group_seconds == 300
    with pytest.raises(ValidationError, match=r"group_timeout_seconds \(120\).*rollout_timeout_seconds \(300\)"):
        settings(rollout_timeout_seconds=300, group_timeout_seconds=120)


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what a dispatcher does by itself."""
    async with asyncio.timeout(HANG_SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


async def until_marked(bus: Bus, num_groups: int) -> None:
    """Until the learners of the run say on the bus that so many groups are dispatched, which follows the tasks."""
    mark = subjects.dispatch_mark("run")
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            with suppress(NotFoundError):
                message = await bus.js.get_last_msg(subjects.DISPATCH, mark)
                if decode(DispatchMark, message.data or b"").num_groups >= num_groups:
                    return
            await asyncio.sleep(0.01)


def several(model: str, **changes: Any) -> LearnerSettings:
    """A learner of a run with several: they dispatch the same tasks."""
    return settings(model=model, task_model="writer", max_staleness=1, groups_per_step=2, **changes)


async def start_two(bus: Bus) -> tuple[Dispatcher, Dispatcher]:
    """The dispatchers of two learners of a run, at its start."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    writer, checker = (Dispatcher(bus, problems(9), several(model)) for model in ("writer", "checker"))
    for dispatcher in (writer, checker):
        await dispatcher.restore([])
        dispatcher.advance(0, 0)
    return writer, checker


async def test_learners_of_a_run_dispatch_each_task_once_together(bus: Bus) -> None:
    writer, checker = await start_two(bus)
    async with dispatching(writer), dispatching(checker):
        first = await tasks_of(bus, 8)  # (max_staleness 1 + 1) x groups_per_step 2, of two samples each
        writer.advance(1, 1, list(dict.fromkeys(task.id for task in first))[:2])
        second = await tasks_of(bus, 4)
        await eventually(lambda: checker.num_dispatched == writer.num_dispatched == 6)
    names = [task.id for task in (*first, *second)]
    assert len(set(names)) == 6 and all(names.count(name) == 2 for name in names)
    assert {task.model for task in first} == {"writer"}


async def test_a_learner_that_is_behind_leaves_the_oldest_groups_to_the_others(bus: Bus) -> None:
    """The other one dispatches on; and a restart from an older checkpoint knows which groups were its own."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    writer, slow = Dispatcher(bus, problems(9), several("writer")), Dispatcher(bus, problems(9), several("checker"))
    await writer.restore([])
    await slow.restore([])
    writer.advance(0, 0)
    async with dispatching(writer):
        first = list(dict.fromkeys(task.id for task in await tasks_of(bus, 8)))
        await until_marked(bus, 4)
        slow.advance(0, 0)
        async with dispatching(slow):  # not before: it would dispatch some of them
            for step in (1, 2):
                writer.advance(step, step, first[2 * step - 2 : 2 * step])
                await tasks_of(bus, 4)
            await eventually(lambda: slow.num_by_others == 8)
    assert slow.take_surplus() == first and slow.take_surplus() == []
    assert len(slow.outstanding_tasks) == 4 and slow.num_by_others == 8
    again = Dispatcher(bus, problems(9), several("checker"))
    await again.restore([])
    assert again.num_dispatched == 8 and len(again.outstanding_tasks) == 4
    alone = Dispatcher(bus, problems(9), several("writer"), num_dispatched=4)
    await alone.restore([])
    assert alone.take_surplus() == [] and alone.num_dispatched == 8, "its own groups stay"


async def test_a_group_of_another_learner_counts_by_the_version_served_when_it_went_out(bus: Bus) -> None:
    """The checker's node swaps while it is told of a group: its tokens in that group are of the version before."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    served = {"version": 0}
    writer = Dispatcher(bus, problems(9), several("writer"))
    checker = Dispatcher(bus, problems(9), several("checker"), served_version=lambda: served["version"])
    await writer.restore([])
    await checker.restore([])
    checker.advance(0, 0)
    writer.advance(0, 0)
    async with dispatching(writer):
        first = list(dict.fromkeys(task.id for task in await tasks_of(bus, 8)))
        await until_marked(bus, 4)
        async with dispatching(checker):
            await eventually(lambda: len(checker.outstanding()) == 4)
        served["version"] = 1
        checker.advance(1, 1, first[:2])
        writer.advance(1, 1, first[:2])
        new = list(dict.fromkeys(task.id for task in await tasks_of(bus, 4)))
        await until_marked(bus, 6)
        async with dispatching(checker):
            await eventually(lambda: checker.num_by_others == 6)
    outstanding = zip(checker.outstanding_tasks, checker.outstanding(), strict=True)
    versions = {task: group.served_version for task, group in outstanding}
    # Two groups that may have tokens of version 0 can be trained by the step from version 1, and no more.
    assert {task: versions.pop(task) for task in new} == dict.fromkeys(new, 0)
    assert checker.take_surplus() == first[2:] and set(versions.values()) <= {1}, "what it dispatched in their place"


async def test_what_is_being_trained_is_left_to_nobody_and_counts_until_its_step_has_ended(bus: Bus) -> None:
    """The writer dispatches on while the checker trains: else the checker would have twice what it can train."""
    writer, checker = await start_two(bus)
    async with dispatching(writer):
        first = list(dict.fromkeys(task.id for task in await tasks_of(bus, 8)))
        await until_marked(bus, 4)
        async with dispatching(checker):
            await eventually(lambda: checker.num_by_others == 4)
            checker.start_batch(first[:2])
            writer.advance(1, 1, first[:2])
            new = list(dict.fromkeys(task.id for task in await tasks_of(bus, 4)))
            await eventually(lambda: checker.num_by_others == 6)
            assert checker.take_surplus() == first[2:] and {*checker.outstanding_tasks} == {*first[:2], *new}
            checker.advance(1, 1, first[:2])
            assert len(checker.outstanding_tasks) == 2, "as many as the step from version 1 can train"


async def test_a_learner_leaves_the_replacements_of_another_learners_groups_to_it(bus: Bus) -> None:
    """They count for no bound here. A task that somebody else publishes into the run is trained."""
    writer, checker = await start_two(bus)
    async with dispatching(checker):
        first = (await tasks_of(bus, 8))[0].id
        await checker.replace_dropped([first])
        again = (await tasks_of(bus, 2))[0].id
        async with dispatching(writer):
            await eventually(lambda: first in writer.outstanding_tasks)
    ready = [RolloutGroup(task, 2, 0.0) for task in (first, again, "somebodys-task")]
    assert again == f"{first}r1"
    assert writer.find_replacements_of_others(ready) == [again]
    assert checker.find_replacements_of_others(ready) == []


async def test_a_group_that_went_out_before_a_restart_counts_by_the_version_served_then(bus: Bus) -> None:
    """The checkpoint does not know it, and a newer version is served now."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    limits = settings(groups_per_step=1, max_staleness=1)
    before = Dispatcher(bus, problems(9), limits)
    await before.restore([])
    before.advance(0, 0)
    async with dispatching(before):
        await tasks_of(bus, 4)
        await until_marked(bus, 2)
    after = Dispatcher(bus, problems(9), limits, 1)
    await after.restore([DispatchedGroup(number=0, served_version=0, is_published=True)])
    after.advance(1, 1)
    async with dispatching(after):
        await eventually(
            lambda: len(after.outstanding()) == 2 and all(group.is_published for group in after.outstanding())
        )
    assert [group.served_version for group in after.outstanding()] == [0, 0]


async def test_what_went_out_after_the_checkpoint_is_outstanding_though_it_has_ended_since(bus: Bus) -> None:
    """Each group under the version it was dispatched by: it has its deadline, and its place among those admitted."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    limits = settings(groups_per_step=1, max_staleness=1)
    recorded: dict[int, DispatchedGroup] = {}
    served = 0

    def record(group: DispatchedGroup, num_by_others: int) -> None:
        recorded[group.number] = replace(group)

    before = Dispatcher(bus, problems(9), limits, served_version=lambda: served, record=record)
    await before.restore([])
    before.advance(0, 0)
    async with dispatching(before):
        first = await tasks_of(bus, 4)
        served = 1
        before.advance(1, 1, [first[0].id])
        second = await tasks_of(bus, 2)
        await until_marked(bus, 3)
    names = [first[0].id, first[2].id, second[0].id]
    kept = [group for number, group in recorded.items() if number > 0]
    closed = {*names}
    for groups, num_known, expected in ((kept, 3, [0, 1]), ([], 1, [0, 0])):
        after = Dispatcher(bus, problems(9), limits, num_known, served_version=lambda: 1, closed=set(names[:1]))
        after.advance(1, 1)
        await after.restore(groups)
        assert [*after.outstanding_tasks] == names[1:]
        assert [group.served_version for group in after.outstanding()] == expected, "at most that, if it is not known"
        async with dispatching(after):
            await asyncio.sleep(0)
            assert after.num_dispatched == 3, "two groups are as many as are admitted"
    after = Dispatcher(bus, problems(9), limits, 3, served_version=lambda: 1, closed=closed)
    await after.restore(kept)
    assert [*after.outstanding_tasks] == names[1:], "what a replay has closed is trained yet"


async def test_tasks_that_a_stop_interrupted_go_out_before_more_are_admitted(bus: Bus) -> None:
    """Training may wait for their group, and for room nobody else makes."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    dispatcher = Dispatcher(bus, problems(9), settings(groups_per_step=1, max_staleness=0))
    await dispatcher.restore([DispatchedGroup(number=0, served_version=0)])
    async with dispatching(dispatcher):
        tasks = await tasks_of(bus, 2)
        await eventually(lambda: all(group.is_published for group in dispatcher.outstanding()))
    assert {task.id for task in tasks} == {*dispatcher.outstanding_tasks}


async def test_learners_that_dispatch_other_tasks_in_one_run_are_refused(bus: Bus) -> None:
    await bus.ensure_consumer(runner_consumer("default", "train"))
    writer = Dispatcher(bus, problems(9), several("writer"))
    await writer.restore([])
    writer.advance(0, 0)
    async with dispatching(writer):
        await tasks_of(bus, 2)
        await until_marked(bus, 1)
    other = Dispatcher(bus, problems(9), several("checker", seed=7))
    with pytest.raises(LearnerError, match="another learner of run 'run' dispatches other tasks"):
        await other.restore([])


async def test_the_only_learner_of_a_run_goes_on_with_other_limits_of_its_tasks(bus: Bus) -> None:
    """And one of several does not: the others dispatch the same tasks."""
    await bus.ensure_consumer(runner_consumer("default", "train"))
    before = Dispatcher(bus, problems(9), settings(groups_per_step=1, max_staleness=0))
    before.advance(0, 0)
    async with dispatching(before):
        await tasks_of(bus, 2)
        await until_marked(bus, 1)
    limits = {"rollout_timeout_seconds": 7.0, "sampling_params": {"temperature": 0.5}, "max_attempts": 1}
    after = Dispatcher(bus, problems(9), settings(groups_per_step=1, max_staleness=1, **limits))
    await after.restore(before.outstanding())
    after.advance(0, 0)
    async with dispatching(after):
        tasks = await tasks_of(bus, 2)
        await until_marked(bus, 2)
    assert {(task.deadline, task.max_attempts) for task in tasks} == {(7.0, 1)}
    other = Dispatcher(bus, problems(9), settings(model="other", **limits | {"max_attempts": 2}))
    with pytest.raises(LearnerError, match=r"another learner of run 'run' dispatches other tasks.* max_attempts"):
        await other.restore([])


async def test_a_learner_that_goes_on_with_other_settings_is_refused_by_the_true_reason(bus: Bus) -> None:
    await bus.ensure_consumer(runner_consumer("default", "train"))
    before = Dispatcher(bus, problems(9), settings())
    before.advance(0, 0)
    async with dispatching(before):
        await tasks_of(bus, 2)
        await until_marked(bus, 1)
    for again in (
        Dispatcher(bus, problems(9), settings(group_size=3)),
        Dispatcher(bus, problems(8), settings()),
    ):
        with pytest.raises(LearnerError, match="run 'run' was begun with other tasks or settings") as refusal:
            await again.restore([])
        assert "group_size, role_models, seed, task" in str(refusal.value) and "another learner" not in str(
            refusal.value
        )
    await Dispatcher(bus, problems(9), settings()).restore([])


async def test_a_learner_that_missed_rollouts_leaves_what_it_had_open_to_the_others(bus: Bus) -> None:
    await bus.ensure_consumer(runner_consumer("default", "train"))
    closed: set[str] = set()
    writer = Dispatcher(bus, problems(9), several("writer"))
    checker = Dispatcher(bus, problems(9), several("checker"), closed=closed)
    await writer.restore([])
    writer.advance(0, 0)
    async with dispatching(writer):
        names = list(dict.fromkeys(task.id for task in await tasks_of(bus, 8)))
        await until_marked(bus, 4)
    await checker.restore([])
    closed.add(names[0])
    assert checker.leave_to_others() == 3 and checker.take_surplus() == names[1:]
    assert [*checker.outstanding_tasks] == names[:1], "what has closed is trained"


def test_groups_that_are_dropped_are_accounted_for_whenever_their_rollouts_end() -> None:
    groups = GroupBuffer(60.0, lambda rollout: True)
    early, late = rollout("a", 0, 1.0, samples=2), rollout("a", 1, 1.0, samples=2)
    groups.add(early, 0.0)
    groups.drop(["a", "b"])
    groups.add(late, 1.0)
    groups.add(rollout("b", 0, 1.0, samples=2), 1.0)
    assert [attempt.id for attempt in groups.surplus_attempts] == ["a.0", "a.1", "b.0"]
    assert not groups.ready and not groups.late_attempts and groups.waiting == 0
