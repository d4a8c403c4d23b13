"""A bus that comes back without what this process reads."""

import asyncio
import shutil

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import BusError
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.bus.streams.specs import learner_consumer, runner_consumer
from lightningbus.schemas import subjects
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS, until_answered

TASKS = runner_consumer("calc", "train")


async def empty(nats: NatsServer, bus: Bus) -> None:
    """The server is killed, and comes back with an empty disk."""
    await nats.kill()
    shutil.rmtree(nats.directory / "jetstream")
    bus.reconnected.clear()
    await nats.start()
    await bus.reconnected.wait()


def task(number: int) -> Task:
    return Task(id=f"t{number}", run_id="test", agent="calc", input=number)


async def test_a_runner_makes_its_durable_again_when_the_bus_comes_back_empty(bus: Bus, nats: NatsServer) -> None:
    await bus.ensure_consumer(TASKS)
    async with asyncio.timeout(HANG_SECONDS), bus.pull(TASKS, slots=2) as puller, Bus.connect(nats.url) as admin:
        await empty(nats, bus)
        await admin.provision()
        await TaskPublisher(bus).publish_task(task(1))
        assert (await anext(puller)).decode_as(Task) == task(1)


async def test_a_durable_deleted_under_a_puller_is_made_again(bus: Bus) -> None:
    await bus.ensure_consumer(TASKS)
    async with asyncio.timeout(HANG_SECONDS), bus.pull(TASKS, slots=2) as puller:
        await TaskPublisher(bus).publish_task(task(1))
        await (await anext(puller)).ack(sync=True)
        await bus.js.delete_consumer(TASKS.stream, TASKS.durable)
        await TaskPublisher(bus).publish_task(task(2))
        assert (await anext(puller)).decode_as(Task) == task(2)


@pytest.mark.parametrize("consumer", [TASKS, learner_consumer("policy")])
async def test_a_role_whose_streams_stay_away_is_not_healthy_and_ends_with_a_sentence(
    consumer: object, bus: Bus, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightningbus.bus.streams.consumer_upkeep.ABORT_SECONDS", 3.0)
    if consumer is TASKS:
        await bus.ensure_consumer(TASKS)
    read = TASKS if consumer is TASKS else learner_consumer("policy")
    async with (
        asyncio.timeout(HANG_SECONDS),
        bus.pull(read, slots=2),
        bus.fleet("runner") as fleet,
        bus.heartbeat("runner", "r", lambda: {"state": "running"}),
    ):
        await empty(nats, bus)
        while not any("run `lightningbus provision`" in str(beat.status.get("bus")) for beat in fleet.members()):
            await fleet.wait_for_change()
        assert "is missing" in bus.problem
        await bus.closed.wait()
        assert read.stream in str(bus.failure) and "run `lightningbus provision`" in str(bus.failure)


async def test_an_admin_that_stays_provisions_again(bus: Bus, nats: NatsServer) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        keeping = asyncio.create_task(bus.keep_provisioned(StreamSizes(tasks_mib=7)))
        async with Bus.connect(nats.url) as other:
            await empty(nats, other)
            while True:
                try:
                    stream = await until_answered(lambda: other.stream_state(subjects.TASKS))
                    break
                except BusError:
                    await asyncio.sleep(0.05)
        assert stream.max_bytes == 7 * 1024 * 1024
        keeping.cancel()
