"""``python -m benchmarks.rollouts.latency``: from publish to the agent, and from an attempt's end to its row."""

import asyncio
import time
from statistics import quantiles

import uvloop

from benchmarks.results import Result, machine, table, write
from benchmarks.system import System, runner, running
from lightningbus.bus.client import Bus
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher

AGENT = "benchmarks.rollouts.agents:stamps"
RUNNERS, SLOTS = 2, 32
IDLE, BURST, SECONDS = 200, 4000, 10.0
LOADS = (0.5, 0.8)
"""Of the rate at which a burst was worked off."""
WAITED = "SELECT groupArray(JSONExtractFloat(result, 'waited')) FROM raw_attempts WHERE run_id = {run_id:String}"
STORED = "SELECT toUnixTimestamp64Nano(max(stored_at)) FROM raw_attempts WHERE run_id = {run_id:String}"
ENDED = "SELECT count() FROM raw_attempts WHERE run_id = {run_id:String}"


def tasks(run: str, count: int, first: int = 0) -> list[Task]:
    """Tasks that say when they were made."""
    now = time.time_ns()
    return [
        Task(id=f"{run}-{first + n}", run_id=run, agent="default", mode="eval", input={"sent": now})
        for n in range(count)
    ]


async def round_trips(bus: Bus, count: int) -> list[float]:
    """Milliseconds of a message to the bare broker and back: the floor under everything here."""
    subject = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(subject)
    milliseconds = []
    for _ in range(count):
        started = time.perf_counter()
        await bus.nc.publish(subject, b"x")
        await subscription.next_msg(timeout=5)
        milliseconds.append(1e3 * (time.perf_counter() - started))
    await subscription.unsubscribe()
    return milliseconds


async def idle(system: System) -> None:
    """One task at a time, each after the one before it has long ended."""
    for number in range(IDLE):
        await TaskPublisher(system.at.bus).publish_tasks(tasks("idle", 1, number))
        await asyncio.sleep(0.03)
    await system.until(ENDED, IDLE, run_id="idle")


async def burst(system: System, run: str) -> float:
    """Rollouts per second when they all come at once."""
    started = time.monotonic()
    await publish_all(system.at.bus, tasks(run, BURST), 120, lambda: None)
    await system.until(ENDED, BURST, run_id=run)
    return BURST / (time.monotonic() - started)


async def loaded(system: System, run: str, rate: float) -> None:
    """A steady stream of so many tasks per second."""
    sent, started, sending = 0, time.monotonic(), set[asyncio.Task[int]]()
    while (passed := time.monotonic() - started) < SECONDS:
        due = int(passed * rate) - sent
        if due > 0:
            sending.add(asyncio.create_task(TaskPublisher(system.at.bus).publish_tasks(tasks(run, due, sent))))
            sent += due
        await asyncio.sleep(0.005)
    await asyncio.gather(*sending)
    await system.until(ENDED, sent, run_id=run)


async def readable(system: System, count: int = 40) -> list[float]:
    """Milliseconds from the bus having an attempt's last span until SQL finds it."""
    milliseconds = []
    for number in range(count):
        run = f"readable-{number}"
        await TaskPublisher(system.at.bus).publish_tasks(tasks(run, 1))
        await system.until(ENDED, 1, run_id=run)
        seen = time.time_ns()
        stored = await system.fetch_value(STORED, run_id=run)
        milliseconds.append((seen - stored) / 1e6)
    return milliseconds


async def measure() -> list[Result]:
    """Idle, at shares of what a burst reached, and the store."""
    async with running("latency") as system:
        await system.runners([runner(number, AGENT, SLOTS) for number in range(RUNNERS)])
        await burst(system, "warm-up")
        bare = percentiles(await round_trips(system.at.bus, 500))
        await idle(system)
        waited = percentiles(await system.fetch_value(WAITED, run_id="idle"))
        results = [
            Result(f"publish to agent, idle, {name}", value, "ms", floor)
            for (name, value), floor in zip(waited.items(), bare.values(), strict=True)
        ]
        rate = await burst(system, "capacity")
        for part in LOADS:
            run = f"loaded-{100 * part:.0f}"
            await loaded(system, run, part * rate)
            note = f"{part * rate:.0f} of {rate:.0f} rollouts/s"
            for name, value in percentiles(await system.fetch_value(WAITED, run_id=run)).items():
                results.append(Result(f"publish to agent, {part:.0%} load, {name}", value, "ms", bare[name], note=note))
        for name, value in percentiles(await readable(system)).items():
            results.append(Result(f"last span to readable, {name}", value, "ms"))
    return results


def percentiles(values: list[float]) -> dict[str, float]:
    """p50 and p99."""
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def main() -> list[Result]:
    """Measure and write."""
    results = uvloop.run(measure())
    write("latency", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
