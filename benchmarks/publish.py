"""``python -m benchmarks.publish``: messages in a batch, with a task each, and by nats-py's `publish_async`."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.results import Result, machine, table, write
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.jetstream.publish_batch import OutgoingMessage
from lightningbus.bus.jetstream.publisher import MAX_PENDING_ACKS
from lightningbus.schemas import subjects

NUM_MESSAGES, PAYLOAD_BYTES, ROUNDS = 20_000, 500, 4
Publish = Callable[[list[OutgoingMessage]], Awaitable[object]]


def messages(name: str) -> list[OutgoingMessage]:
    """Messages with the headers that tasks have."""
    payload = os.urandom(PAYLOAD_BYTES)
    headers = {subjects.SCHEMA_HEADER: "Task/2", subjects.TRACE_HEADER: "00-" + "0" * 32 + "-" + "1" * 16 + "-01"}
    return [
        OutgoingMessage(subjects.ALERT, payload, {**headers, subjects.MSG_ID_HEADER: f"{name}-{number}"})
        for number in range(NUM_MESSAGES)
    ]


async def timed(publish: Publish, name: str) -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    batch = messages(name)
    started, spent = time.perf_counter(), time.process_time()
    await publish(batch)
    return time.perf_counter() - started, time.process_time() - spent


async def measure(place: Path) -> list[Result]:
    """All ways in turn, some times over; the best of each counts."""
    async with nats_server(place / "nats") as server, Bus.connect(server.url) as bus:
        await bus.provision()
        js = bus.nc.jetstream(publish_async_max_pending=MAX_PENDING_ACKS)

        async def by_nats_py(batch: list[OutgoingMessage]) -> None:
            futures = [await js.publish_async(subject, payload, headers=more) for subject, payload, more in batch]
            await asyncio.gather(*futures)

        async def by_batch(batch: list[OutgoingMessage]) -> None:
            results = await bus.publish_batch(batch)
            assert all(isinstance(result, int) for result in results)

        async def by_tasks(batch: list[OutgoingMessage]) -> None:
            await asyncio.gather(*(bus.publish_bytes(*message, timeout=30) for message in batch))

        ways = {"nats-py": by_nats_py, "in a batch": by_batch, "a task each": by_tasks}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(ROUNDS):
            for name, publish in ways.items():
                took[name].append(await timed(publish, f"{name}-{turn}"))
    wall = {name: min(seconds for seconds, _ in rounds) for name, rounds in took.items()}
    cpu = {name: 1e6 * min(seconds for _, seconds in rounds) / NUM_MESSAGES for name, rounds in took.items()}
    results = []
    for name in ("in a batch", "a task each"):
        rates = NUM_MESSAGES / wall[name], NUM_MESSAGES / wall["nats-py"]
        results.append(Result(f"published {name}", rates[0], "messages/s", peer=rates[1]))
        results.append(
            Result(f"published {name}: CPU of the publisher", cpu[name], "µs per message", peer=cpu["nats-py"])
        )
    return results


def main() -> list[Result]:
    """Measure and write."""
    with tempfile.TemporaryDirectory(prefix="bench-publish-", ignore_cleanup_errors=True) as place:
        results = uvloop.run(measure(Path(place)))
    write("publish", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
