"""Tasks that runners are not to take yet, on a real bus."""

import asyncio

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.run.jobs.paused_tasks import tasks_paused
from lightningbus.schemas import subjects
from lightningbus.schemas.tasks import Task
from tests.polling import HANG_SECONDS


async def test_tasks_stay_on_the_bus_until_the_pause_ends(bus: Bus) -> None:
    consumers = [runner_consumer("default", mode) for mode in ("train", "eval")]
    training, evaluation = consumers
    taken: asyncio.Queue[str] = asyncio.Queue()

    async def take(consumer: object) -> None:
        async with bus.pull(consumer, slots=2) as puller:  # type: ignore[arg-type]
            async for message in puller:
                taken.put_nowait(message.decode_as(Task).mode)
                await message.ack()

    async with tasks_paused(bus, [training]):
        await bus.ensure_consumer(evaluation)
        runners = [asyncio.create_task(take(consumer)) for consumer in consumers]
        await bus.ensure_consumer(training)  # as the supervisor does again and again
        for mode in ("train", "eval"):
            task = Task(id="a", run_id="run", agent="default", mode=mode, input=0)
            await bus.publish(subjects.task(mode, "default"), task, msg_id=mode)
        async with asyncio.timeout(HANG_SECONDS):
            assert await taken.get() == "eval", "evaluations go on"
        info = await bus.js.consumer_info(training.stream, training.durable)
        assert (info.paused, info.num_pending, taken.empty()) == (True, 1, True)
    async with asyncio.timeout(HANG_SECONDS):
        assert await taken.get() == "train"
    for runner in runners:
        runner.cancel()
    await asyncio.gather(*runners, return_exceptions=True)
