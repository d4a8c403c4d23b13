"""No exception costs a slot: whatever a task is, whatever fails and when, it is settled and the next runs.

The runner, its agent process and the bus are real; what is thrown is thrown where the runner waits for something.
"""

import asyncio
from collections.abc import Coroutine, Generator
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.streams.specs import STORE_TRAIN
from lightningbus.common.backoff import RetryPolicy
from lightningbus.common.observability.metric_registry import REGISTRIES
from lightningbus.runners import retry_policy
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.slots import Slots
from lightningbus.runners.task_handler import TaskHandler
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Mode
from lightningbus.schemas.codec import MAX_BYTES, EncodeError, schema_of
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ended, running, task
from tests.stream_limits import limit

NO_JSON = {
    "timestamp": msgpack.Timestamp.from_datetime(datetime(2030, 1, 1, tzinfo=UTC)),
    "bytes": {"image": b"\x89PNG"},
    "extension": msgpack.ExtType(5, b"x"),
    "key": {(1, 2): 3},
    "nan": [float("nan")],
}


async def publish_input(bus: Bus, id: str, value: Any, mode: str = "eval") -> None:
    """A task as another language's client would write it."""
    fields = {"id": id, "run_id": "run", "agent": "default", "mode": mode, "deadline": HANG_SECONDS / 2, "input": value}
    await bus.js.publish(
        subjects.task(mode, "default"), msgpack.packb(fields), headers={subjects.SCHEMA_HEADER: schema_of(Task)}
    )


def errors_counted() -> float:
    return REGISTRIES["common"].get_sample_value("lightningbus_faults_total") or 0.0


async def queue_is_empty(bus: Bus) -> None:
    """Until every task is settled for good."""
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.js.stream_info(subjects.TASKS)).state.messages:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", NO_JSON)
async def test_a_task_whose_input_is_no_json_is_a_dead_letter_at_once_and_costs_no_slot(bus: Bus, kind: str) -> None:
    async with running(bus, entrypoint="plain:answers", concurrency=2):
        for number in range(3):
            await publish_input(bus, f"bad{number}", NO_JSON[kind])
        await TaskPublisher(bus).publish_task(task(id="good"))
        batches = {batch.task_id: batch for batch in await ended(bus, 4)}
        await queue_is_empty(bus)
    assert (end := batches.pop("good").end) is not None and end.outcome == "ok"
    for batch in batches.values():
        assert batch.end is not None and (batch.end.outcome, batch.attempt) == ("poison", 1)
        assert "its input is no JSON" in batch.end.error
    letters = [letter async for _, letter in DeadLetterQueue(bus).list_letters()]
    assert len(letters) == 3 and all("its input is no JSON" in letter.reason for letter in letters)


async def test_an_evaluation_is_not_held_up_by_a_full_training_stream(bus: Bus) -> None:
    """Each training rollout leaves its slot to wait, and as many wait as there are slots: no more are begun."""
    async with running(bus, entrypoint="plain:answers", concurrency=2, ack_wait=1.0), bus.fleet("runner") as fleet:
        await limit(bus, subjects.TRAIN_ROLLOUTS, 1)
        for number in range(5):
            await TaskPublisher(bus).publish_task(task(id=f"train{number}", mode="train"))
        async with asyncio.timeout(HANG_SECONDS):
            while (await waiting(bus, "train")).num_ack_pending != 2 or not is_waiting_for_room(fleet):
                await fleet.wait_for_change()
        for number in range(5):
            await TaskPublisher(bus).publish_task(task(id=f"eval{number}"))
        batches = await ended(bus, 5)
        assert sorted(batch.task_id for batch in batches) == [f"eval{number}" for number in range(5)]
        assert (await waiting(bus, "train")).num_ack_pending == 2, "the rest is left to other runners"
        await limit(bus, subjects.TRAIN_ROLLOUTS, None)
        await queue_is_empty(bus)
    async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_TRAIN, slots=8) as puller:
        trained = [(await anext(puller)).decode_as(SpanBatch) for _ in range(5)]
    assert sorted((batch.task_id, batch.attempt) for batch in trained) == [(f"train{n}", 1) for n in range(5)], "leased"


async def test_a_training_task_that_cannot_be_used_holds_up_no_evaluation_either(bus: Bus) -> None:
    await limit(bus, subjects.TRAIN_ROLLOUTS, 1)
    async with running(bus, entrypoint="plain:answers", concurrency=1):
        for number in range(2):
            await publish_input(bus, f"bad{number}", b"no JSON", "train")
        async with asyncio.timeout(HANG_SECONDS):
            while not (await bus.js.stream_info(subjects.TRAIN_ROLLOUTS)).state.messages:
                await asyncio.sleep(0.02)
        await TaskPublisher(bus).publish_task(task(id="good"))
        (batch,) = await ended(bus)
        assert batch.task_id == "good"
        await limit(bus, subjects.TRAIN_ROLLOUTS, None)
        await queue_is_empty(bus)


async def waiting(bus: Bus, mode: str) -> Any:
    """What the broker knows of the durable of a mode."""
    return await bus.js.consumer_info(subjects.TASKS, subjects.runner_durable("default", mode))


def is_waiting_for_room(fleet: Fleet) -> bool:
    """Whether a runner says that it waits for room for a training rollout, and has no agent at work."""
    status = [beat.status for beat in fleet.members()]
    return any((item.get("waits_for_room"), item["busy"]) == (subjects.TRAIN_ROLLOUT, "0/2") for item in status)


class Interrupted:
    """A coroutine that is thrown at, instead of going on, at some of the moments it waits."""

    def __init__(self, work: Coroutine[Any, Any, None], errors: dict[int, BaseException]) -> None:
        self._work, self._errors = work, errors

    def __await__(self) -> Generator[Any, Any, None]:
        moment, error = 0, None
        while True:
            try:
                waits_for = self._work.throw(error) if error is not None else self._work.send(None)
            except StopIteration:
                return
            moment += 1
            error = self._errors.get(moment)
            if error is not None:
                if waits_for is not None:
                    waits_for._asyncio_future_blocking = False  # nobody waits for it any more
                continue
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


ERRORS = (
    *(TypeError, ValueError, KeyError, OSError, ConnectionResetError, TimeoutError, RecursionError, RuntimeError),
    *(asyncio.InvalidStateError, asyncio.CancelledError, NatsError, BusError, EncodeError, MemoryError),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(thrown=st.dictionaries(st.integers(1, 40), st.sampled_from(ERRORS), min_size=1, max_size=3))
@pytest.mark.long
async def test_whatever_is_thrown_at_any_await_of_a_rollout_frees_the_slot_and_settles_the_task(
    bus: Bus, thrown: dict[int, type[BaseException]]
) -> None:
    serve, errors = TaskHandler.serve, {moment: error("thrown by the test") for moment, error in thrown.items()}

    async def interrupted(self: TaskHandler, *which: Any) -> None:
        now = errors.copy()
        errors.clear()  # only the first one
        await Interrupted(serve(self, *which), now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskHandler, "serve", interrupted)
        patch.setattr(retry_policy, "RETRY_POLICY", RetryPolicy(0.05, 30.0))
        async with running(bus, entrypoint="plain:answers", concurrency=1, ack_wait=1.0, drain_timeout_seconds=0):
            await TaskPublisher(bus).publish_task(task(id="interrupted", max_attempts=2))
            await TaskPublisher(bus).publish_task(task(id="next"))
            await queue_is_empty(bus)
    await bus.js.purge_stream(subjects.EVAL_ROLLOUTS)


async def test_an_error_of_ours_is_counted_and_the_task_tried_again(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    before = errors_counted()
    run, failing = TaskHandler._run, [ZeroDivisionError("a fault of ours")]

    async def fails_once(self: TaskHandler, *which: Any) -> Any:
        if failing:
            raise failing.pop()
        return await run(self, *which)

    monkeypatch.setattr(TaskHandler, "_run", fails_once)
    async with running(bus, entrypoint="plain:answers"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.attempt == 2 and batch.end is not None and batch.end.outcome == "ok"
    assert errors_counted() == before + 1


async def test_a_task_that_fails_its_runner_every_time_is_a_dead_letter_in_the_end(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "RETRY_POLICY", RetryPolicy(0.05, 0.05))
    async with running(bus, entrypoint="plain:answers"):
        await publish_input(bus, "large", "x" * (MAX_BYTES - 200))  # with its publisher's span it is no record
        await TaskPublisher(bus).publish_task(task(id="next"))
        await queue_is_empty(bus)
    (letter,) = [letter async for _, letter in DeadLetterQueue(bus).list_letters()]
    assert letter.num_delivered == retry_policy.MAX_DELIVERIES and "the limit is" in letter.reason


async def test_a_free_slot_is_an_evaluations_before_it_is_trainings() -> None:
    slots = Slots(lambda: None)
    slots.open([Slot(number) for number in range(2)])
    order: list[str] = []

    async def work(name: str, mode: Mode, done: asyncio.Event) -> None:
        async with slots.lease(mode):
            order.append(name)
            await done.wait()

    first, second = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name, done in (("train1", first), ("train2", second)):
            group.create_task(work(name, "train", done))
        await asyncio.sleep(0)
        group.create_task(work("train3", "train", second))
        await asyncio.sleep(0)
        group.create_task(work("eval", "eval", second))
        await asyncio.sleep(0)
        assert order == ["train1", "train2"] and slots.num_free("train") == slots.num_free("eval") == 0
        first.set()
        while len(order) < 3:
            await asyncio.sleep(0)
        second.set()
    assert order == ["train1", "train2", "eval", "train3"]


async def test_tasks_that_have_arrived_and_asked_for_no_slot_yet_count_as_held() -> None:
    """Else a runner would hold tasks that wait, while another runner is idle."""
    slots = Slots(lambda: None)
    slots.open([Slot(number) for number in range(10)])
    assert slots.max_in_flight("train", {"train": 0, "eval": 0}) == 10
    assert slots.max_in_flight("train", {"train": 4, "eval": 0}) == 10, "four have arrived"
    assert slots.max_in_flight("train", {"train": 4, "eval": 3}) == 7
    async with slots.lease("train"), slots.lease("train"):
        assert slots.max_in_flight("train", {"train": 2, "eval": 0}) == 10
        assert slots.max_in_flight("train", {"train": 4, "eval": 0}) == 10
        assert slots.max_in_flight("eval", {"train": 2, "eval": 0}) == 8
    assert slots.max_in_flight("train", {"train": 12, "eval": 0}) == 12, "what has arrived stays"
