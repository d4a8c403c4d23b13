"""``python -m benchmarks.rollouts.scale``: more runners, ten thousand rollouts at once, a million tasks waiting."""

import asyncio
import time

import uvloop
from nats.errors import Error as NatsError

from benchmarks.results import Result, machine, table, write
from benchmarks.rollouts.latency import percentiles
from benchmarks.system import System, runner, running, usage
from benchmarks.workloads.__main__ import AGENT, Workload, drive
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import encode, schema_of
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher

RUNNERS = (1, 2, 4, 8)
LOAD = Workload("scale", "batch_partial", 3000, 1000, 64, 3, 0.0, 1000)
AT_ONCE, SLEEP_SECONDS = 10_000, 25.0
WAITING = (10_000, 100_000, 1_000_000)
ENDED = "SELECT uniqExact(rollout_id) FROM raw_attempts WHERE run_id = {run_id:String} AND outcome = 'ok'"


async def more_runners() -> list[Result]:
    """Rollouts per second by the number of runner processes, agents that emit spans and do not sleep."""
    results: list[Result] = []
    for count in RUNNERS:
        async with running("runners") as system:
            await system.runners([runner(number, AGENT, LOAD.agents // count) for number in range(count)])
            await drive(system, Workload("warm-up", "batch", 200, 200, 8, 1, 0.0))
            started = time.monotonic()
            await drive(system, LOAD)
            rate = LOAD.total / (time.monotonic() - started)
        note = f"{rate / results[0].value:.2f} times one" if results and results[0].value else ""
        results.append(Result(f"{count} runner processes", rate, "rollouts/s", note=note))
    return results


async def at_once() -> list[Result]:
    """Sleeping agents: how many run at the same time, and what that takes."""
    async with running("at-once") as system:
        await system.runners(
            [runner(n, "benchmarks.rollouts.agents:sleeps", AT_ONCE // 4, ack_wait=60.0) for n in range(4)]
        )
        before = usage()
        tasks = (
            Task(
                id=f"s{n}",
                run_id="at-once",
                agent="default",
                mode="eval",
                input={"seconds": SLEEP_SECONDS},
                deadline=240,
            )
            for n in range(AT_ONCE)
        )
        started = time.monotonic()
        publishing = asyncio.create_task(publish_all(system.at.bus, tasks, 240, lambda: None))
        peak, during = 0, before
        while await system.fetch_value(ENDED, run_id="at-once") < AT_ONCE:
            await system.at.fleet.wait_for_change()
            busy = sum(
                int(str(beat.status["busy"]).split("/")[0])
                for beat in system.at.fleet.members()
                if beat.role == "runner"
            )
            if busy > peak:
                peak, during = busy, usage()
        await publishing
        seconds = time.monotonic() - started
        memory = {
            role: during[role][1] - before.get(role, (0.0, 0.0))[1] for role in ("runners", "agents", "nats-server")
        }
        lost = await system.fetch_value("SELECT count() FROM check_unfinished_rollouts")
    return [
        Result("rollouts at once", float(peak), "rollouts", float(AT_ONCE), note=f"{lost} lost"),
        Result("10,000 rollouts, first to last", seconds, "s", SLEEP_SECONDS),
        *(Result(f"memory of {role}, per rollout", 1024 * more / peak, "KiB") for role, more in memory.items()),
    ]


async def waiting() -> list[Result]:
    """The broker with a queue of a million: what a task takes there, and whether the next comes any later."""
    results = []
    async with running("waiting") as system:
        before, published = usage()["nats-server"][1], 0
        for count in WAITING:
            await _fill(system, published, count - published)
            published = count
            state = (await system.at.bus.js.stream_info(subjects.TASKS)).state
            memory = usage()["nats-server"][1]
            name = f"{count:,} tasks waiting"
            results.append(Result(f"{name}: disk per task", state.bytes / state.messages, "B"))
            results.append(
                Result(f"{name}: memory of nats-server", memory - before, "MiB", note=f"{state.messages:,} there")
            )
            for which, value in percentiles(await _publishes(system, count)).items():
                results.append(Result(f"{name}: publish, {which}", value, "ms"))
    return results


async def _fill(system: System, first: int, count: int) -> None:
    """Publish without waiting for each answer; the last is waited for, and what was lost on the way sent again."""
    headers = {subjects.SCHEMA_HEADER: schema_of(Task)}
    for number in range(first, first + count):
        task = Task(id=f"w{number}", run_id="waiting", agent="nobody", mode="eval", input={})
        local = {**headers, subjects.MSG_ID_HEADER: ids.task_msg_id(f"w{number}.0")}
        await system.at.bus.nc.publish(subjects.task("eval", "nobody"), encode(task), headers=local)
        if number % 2000 == 1999:
            await system.at.bus.nc.flush(timeout=60)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if (await system.at.bus.js.stream_info(subjects.TASKS)).state.messages >= first + count:
                return
        except NatsError:
            pass
        await asyncio.sleep(0.2)


async def _publishes(system: System, already: int) -> list[float]:
    milliseconds = []
    for number in range(200):
        task = Task(id=f"after-{already}-{number}", run_id="waiting", agent="nobody", mode="eval", input={})
        started = time.perf_counter()
        await TaskPublisher(system.at.bus).publish_tasks([task])
        milliseconds.append(1e3 * (time.perf_counter() - started))
    return milliseconds


async def measure() -> list[Result]:
    """All three."""
    return [*await more_runners(), *await at_once(), *await waiting()]


def main() -> list[Result]:
    """Measure and write."""
    results = uvloop.run(measure())
    write("scale", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
