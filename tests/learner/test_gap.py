"""A whole learner on a bus that loses what it had, with the test in place of the runners."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.learner import run
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Alert
from lightningbus.schemas.step_metrics import find_undeclared
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import TrainingStep
from tests.factories import batches
from tests.learner.conftest import settings_for
from tests.polling import HANG_SECONDS

AGENTS = runner_consumer("default", "train")


@asynccontextmanager
async def learning(
    bus: Bus, model_path: Path, tmp_path: Path, stop: asyncio.Event | None = None, **changes: Any
) -> AsyncIterator["asyncio.Task[None]"]:
    """A learner of one step of one group of two rollouts; ``changes`` are of its settings."""
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n{"id": "b", "input": 2}\n')
    sizes = {"group_size": 2, "max_steps": 1, "groups_per_step": 1, "max_staleness": 0}
    changes = {"tasks": tmp_path / "tasks.jsonl", "checkpoint_dir": tmp_path / "checkpoints", **sizes, **changes}
    settings = settings_for(model_path, **changes)
    await bus.ensure_consumer(AGENTS)
    running = asyncio.create_task(run(bus, settings, stop or asyncio.Event()))
    try:
        yield running
    finally:
        await cancel_and_wait(running)


async def take_deliveries(bus: Bus, count: int) -> list[Message]:
    """The next tasks as the broker delivers them, each of them taken out of the queue."""
    async with bus.pull(AGENTS, slots=count) as puller:
        messages = [await anext(puller) for _ in range(count)]
        for message in messages:
            await message.ack(sync=True)
        return messages


async def take(bus: Bus, count: int) -> list[Task]:
    """The next tasks, each of them taken out of the queue."""
    return [message.decode_as(Task) for message in await take_deliveries(bus, count)]


async def finish(bus: Bus, tasks: list[Task]) -> None:
    """What a runner says of tasks it has done."""
    for task in tasks:
        for part in batches(task.id, task.sample_index, float(task.sample_index), samples=2):
            await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")


async def restart(bus: Bus, nats: NatsServer) -> None:
    """Start a stopped server, and wait until the bus is connected to it."""
    bus.reconnected.clear()
    await nats.start()
    await bus.reconnected.wait()


async def wait_for_state(learners: Fleet, state: str) -> None:
    """Wait until the one learner reports a state."""
    while [beat.state for beat in learners.members()] != [state]:
        await learners.wait_for_change()


async def test_tasks_that_the_bus_lost_are_dispatched_again_and_the_gap_is_named(
    bus: Bus, nats: NatsServer, model_path: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(HANG_SECONDS),
        bus.fleet("learner") as learners,
        learning(bus, model_path, tmp_path) as running,
    ):
        tasks = await take(bus, 2)
        await nats.kill()
        shutil.rmtree(nats.directory / "jetstream")
        bus.reconnected.clear()
        await nats.start()
        await bus.reconnected.wait()
        await bus.provision()
        await bus.ensure_consumer(AGENTS)
        again = await take(bus, 2)
        assert {task.id for task in again} == {tasks[0].id}
        await finish(bus, again)
        await running
        await wait_for_state(learners, "done")
        async with bus.pull(STORE_EVENTS, slots=9) as puller:
            while not isinstance(step := (await anext(puller)).event(), TrainingStep):
                continue
        assert (step.metrics["bus/gaps"], step.metrics["bus/tasks_dispatched_again"]) == (1, 2)
        assert find_undeclared(step.metrics) == []
        alert, _ = await bus.get_last(subjects.ALERTS, subjects.ALERT, Alert) or (None, 0)
        assert alert is not None and alert.resolved and "TRAIN_ROLLOUTS was made anew" in alert.reason
        assert alert.reason.endswith("2 tasks are dispatched again")


@pytest.mark.parametrize("is_up", [True, False], ids=["lived through", "resumed"])
async def test_tasks_that_a_rolled_back_bus_lost_are_dispatched_again_though_no_rollout_is_missing(
    is_up: bool, bus: Bus, nats: NatsServer, model_path: Path, tmp_path: Path
) -> None:
    storage, copy, stop = nats.directory / "jetstream", tmp_path / "copy", asyncio.Event()
    await bus.ensure_consumer(AGENTS)
    await nats.stop()
    shutil.copytree(storage, copy)
    await restart(bus, nats)

    async def roll_back() -> None:
        await nats.stop()
        shutil.rmtree(storage)
        shutil.move(copy, storage)
        await restart(bus, nats)

    async with asyncio.timeout(HANG_SECONDS):
        async with learning(bus, model_path, tmp_path, stop) as running:
            tasks = await take(bus, 2)
            if is_up:
                await roll_back()
                again = await take(bus, 2)
                await finish(bus, again)
            else:
                stop.set()
            await running
        if not is_up:
            await roll_back()
            async with learning(bus, model_path, tmp_path) as running:
                again = await take(bus, 2)
                await finish(bus, again)
                await running
    assert {(task.id, task.sample_index) for task in again} == {(task.id, task.sample_index) for task in tasks}
    alert, _ = await bus.get_last(subjects.ALERTS, subjects.ALERT, Alert) or (None, 0)
    assert alert is not None and "stream TASKS ends at message 0 again" in alert.reason
    assert "TRAIN_ROLLOUTS" not in alert.reason


async def test_a_learner_that_is_stopped_is_not_done(bus: Bus, model_path: Path, tmp_path: Path) -> None:
    stop = asyncio.Event()
    async with (
        asyncio.timeout(HANG_SECONDS),
        bus.fleet("learner") as learners,
        learning(bus, model_path, tmp_path, stop) as running,
    ):
        await wait_for_state(learners, "waiting")
        stop.set()
        await running
        await wait_for_state(learners, "stopping")
