"""Real loads beside what the model says of them: a crowd of connections, and runners at work, one to eight."""

import asyncio
import signal
import sys
import time
from dataclasses import dataclass, replace

import psutil

from benchmarks.gateway.engine import ANSWER, DELAY_SECONDS
from benchmarks.results import Result
from benchmarks.sizing.measure import Meter, broker, settle
from benchmarks.sizing.model import Costs, Fit, Load, Plant, simulate
from benchmarks.system import System, runner, running, usage
from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_TRAIN, ConsumerSpec, learner_consumer, runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher

CROWD, PROCESSES = 1000, 2
NODES = 2
"""Heartbeats that every one of the crowd hears."""
WATCHED_SECONDS = 8.0
CROWD_TASKS = 2000
RUNNERS = (1, 2, 4, 8)
SLOTS, TURNS = 8, 4
ROLLOUTS = 8
"""Of each slot."""
AGENT = "benchmarks.gateway.agent:either"
ENDED = "SELECT count() FROM raw_attempts WHERE run_id = {run_id:String}"


@dataclass(frozen=True)
class Crowd:
    """CPU seconds of the broker: a second while all wait, and a rollout beyond that."""

    idle: float
    rollout: float
    done: int
    refused: int
    waiting: int


async def crowd(count: int, nodes: int, tasks: int) -> Crowd:
    """So many connections of runners, first waiting, then with tasks; a store and a learner read what they say."""
    async with broker() as (server, bus):
        await bus.ensure_consumer(runner_consumer("default", "train"))
        processes = []
        for number in range(PROCESSES):
            each = [str(number * (count // PROCESSES)), str(count // PROCESSES)]
            command = [sys.executable, "-m", "benchmarks.sizing.crowd", server.url, *each]
            pipe = asyncio.subprocess.PIPE
            processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        for process in processes:
            assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
        others = [asyncio.create_task(_node(bus, f"node-{number}")) for number in range(nodes)]
        others += [asyncio.create_task(_read(bus, consumer)) for consumer in (STORE_TRAIN, learner_consumer("policy"))]
        await asyncio.sleep(2)
        meter, started = Meter(server), time.monotonic()
        await asyncio.sleep(WATCHED_SECONDS)
        idle = meter.since() / (time.monotonic() - started)
        waiting = (await bus.js.consumer_info("TASKS", runner_consumer("default", "train").durable)).num_waiting
        started = time.monotonic()
        built = [Task(id=f"c{n}", run_id="crowd", agent="default", input={"n": n}) for n in range(tasks)]
        for at in range(0, tasks, 200):
            await TaskPublisher(bus).publish_tasks(built[at : at + 200])
        async with asyncio.timeout(120):
            while (await bus.js.stream_info("TASKS")).state.messages:
                await asyncio.sleep(0.1)
        await settle()
        spent = meter.since() - idle * (time.monotonic() - started)
        await cancel_and_wait(*others)
        texts = [await process.communicate(b"") for process in processes]
        done, refused = (sum(int(out.split()[place]) for out, _ in texts) for place in (0, 1))
    return Crowd(idle, spent / tasks if tasks else 0.0, done, refused, waiting)


async def beside(costs: Costs) -> list[Result]:
    """A larger crowd, and as ceiling what the model says of it."""
    measured = await crowd(CROWD, NODES, CROWD_TASKS)
    model = CROWD * costs.waiting_runner + CROWD * NODES * costs.heartbeat_delivery
    about = f"{CROWD} connections, {NODES} nodes; {measured.waiting} requests wait, {measured.refused} refused"
    return [
        Result("a crowd that waits: the broker", 1e3 * measured.idle, "ms of CPU a second", 1e3 * model, note=about),
        Result(
            "a crowd at work: the broker", 1e6 * measured.rollout, "µs of CPU a rollout", 1e6 * costs.broker_rollout
        ),
        Result("a crowd at work: rollouts done", float(measured.done), "rollouts", float(CROWD_TASKS)),
    ]


async def _read(bus: Bus, consumer: ConsumerSpec) -> None:
    async with bus.pull(consumer, slots=4096) as puller:
        async for message in puller:
            if consumer is STORE_TRAIN or message.sequence % 50 == 0:
                await message.ack()


async def _node(bus: Bus, name: str) -> None:
    async with bus.heartbeat("inference", name, lambda: {"state": "ready", "model": "policy", "version": 1}):
        await asyncio.Event().wait()


@dataclass(frozen=True)
class Measured:
    """Runners at work."""

    runners: int
    rate: float
    """Rollouts a second."""
    seconds: dict[str, float]
    """CPU of a rollout, by role."""
    others: float
    """Cores that were busy with something else meanwhile."""


async def at_work(count: int) -> Measured:
    """Rollouts of a few model calls each, at an engine that takes its time."""
    async with running("sizing") as system:
        command = [sys.executable, "-m", "benchmarks.gateway.engine", system.at.url, str(system.at.keys.credentials)]
        engine = await spawn(*command, pdeathsig=signal.SIGKILL)
        try:
            await system.at.wait_for_member(lambda beat: beat.role == "inference", "engine", 60)
            await system.runners([runner(number, AGENT, SLOTS) for number in range(count)])
            await _batch(system, "warm-up", count * SLOTS)
            before, busy, started = usage(), _busy(), time.monotonic()
            total = count * SLOTS * ROLLOUTS
            await _batch(system, "work", total)
            seconds, after, busy = time.monotonic() - started, usage(), _busy() - busy
        finally:
            await terminate(engine, 5)
    spent = {role: (after[role][0] - before.get(role, (0.0, 0.0))[0]) / total for role in after}
    return Measured(count, total / seconds, spent, max(busy - total * sum(spent.values()), 0.0) / seconds)


def _busy() -> float:
    """CPU seconds of everything on this machine."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


async def _batch(system: System, run: str, count: int) -> None:
    fields = {"turns": TURNS, "characters": 400}
    tasks = (
        Task(id=f"{run}-{n}", run_id=run, agent="default", mode="eval", input=fields, deadline=120)
        for n in range(count)
    )
    await publish_all(system.at.bus, tasks, 60, lambda: None)
    await system.until(ENDED, count, run_id=run)


def predicted(measured: Measured, runners: int, costs: Costs, others: float) -> float:
    """Rollouts a second of more runners, from what one runner's rollouts took: time, and CPU of all roles.

    All of them share this machine's cores here, as one station; ``others`` of the cores are busy with something else.
    """
    cores = max(float(psutil.cpu_count() or 1) - others, 0.1)
    whole = sum(measured.seconds.values())
    outside = max(SLOTS / measured.rate - TURNS * DELAY_SECONDS, 0.0) / TURNS  # of a turn, beside the engine
    load = Load(
        tasks=runners * SLOTS * ROLLOUTS, runners=runners, slots=SLOTS, turns=TURNS,
        prompt_tokens=100, response_tokens=ANSWER, tool_seconds=outside,
    )  # fmt: skip
    plant = Plant(
        nodes=1000, node_tokens=1e6, call_tokens=ANSWER / DELAY_SECONDS, broker_cores=cores, listeners=0,
        ingesters=1000, gpu_tokens=1e9, ahead=10**9,
    )  # fmt: skip
    shared = replace(
        costs,
        broker_rollout=whole,
        broker_byte=0.0,
        waiting_runner=0.0,
        heartbeat_delivery=0.0,
        store_seconds=Fit(1e-9, 0, 0),
    )
    return simulate(load, plant, shared, step=0.02, spread=False).whole


async def growth(first: Measured, costs: Costs) -> list[Result]:
    """Measured, and as ceiling what is predicted from the ``first`` of them, one runner."""
    results = []
    for count in RUNNERS:
        measured = first if count == first.runners else await at_work(count)
        parts = ", ".join(f"{role} {1e3 * item:.1f}" for role, item in sorted(measured.seconds.items()))
        note = f"ms of CPU a rollout: {parts}; {measured.others:.1f} cores busy with something else"
        results.append(
            Result(
                f"{count} runners at work",
                measured.rate,
                "rollouts/s",
                predicted(first, count, costs, measured.others),
                note=note,
            )
        )
    return results
