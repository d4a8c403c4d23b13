"""A crowd of runners' connections in one process: ``python -m benchmarks.sizing.crowd URL FIRST COUNT``.

Each is what a runner is to the bus: heartbeats, an ear for nodes, a request for tasks that waits, leases that are kept.
The agents sleep, and say one small batch of spans. Says ``ready`` once all are connected, and at the end how many tasks
were done and pulls refused.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

import uvloop
from msgspec.structs import replace

from benchmarks.sizing.measure import rollout
from lightningbus.bus.client import Bus
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.jetstream.pull_consumer import PullConsumer
from lightningbus.bus.lease import LeaseRenewer
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.tasks import Task

SLOTS = 4
(SAID,) = rollout("crowd", (1, 50), 0)
AGENT_SECONDS = 2.0
AT_ONCE = 50


async def work(bus: Bus, puller: PullConsumer) -> int:
    """Tasks of one runner until it is asked to stop; returns how many."""
    done = 0
    running: set[asyncio.Task[None]] = set()

    async def handle(message: Message) -> None:
        nonlocal done
        task = message.decode_as(Task)
        async with LeaseRenewer(message):
            await asyncio.sleep(AGENT_SECONDS)
            batch = replace(SAID, rollout_id=f"{task.id}.0", task_id=task.id, execution_id=task.id)
            msg_id = ids.batch_msg_id(batch.execution_id, batch.sequence)
            await bus.publish(subjects.rollout("train"), batch, msg_id=msg_id, timeout=60)
        await message.ack()
        done += 1

    async for message in puller:
        task = asyncio.create_task(handle(message))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)
    return done


async def main(url: str, first: int, count: int) -> None:
    """See the module."""
    async with AsyncExitStack() as stack:
        gate, pullers = asyncio.Semaphore(AT_ONCE), list[tuple[Bus, PullConsumer]]()

        async def join(number: int) -> None:
            async with gate:
                bus = await stack.enter_async_context(Bus.connect(url, name=f"crowd-{number}"))
                await stack.enter_async_context(bus.fleet("inference"))
                described = {"state": "running", "status": {"agent": "default", "busy": f"0/{SLOTS}", "done": 0}}
                await stack.enter_async_context(bus.heartbeat("runner", f"crowd-{number}", lambda: described))
                pullers.append(
                    (bus, await stack.enter_async_context(bus.pull(runner_consumer("default", "train"), SLOTS)))
                )

        await asyncio.gather(*(join(first + number) for number in range(count)))
        working = [asyncio.create_task(work(*item)) for item in pullers]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for _, puller in pullers:
            puller.stop()
        done = sum(await asyncio.gather(*working))
        print(done, sum(puller.num_rejected for _, puller in pullers), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
