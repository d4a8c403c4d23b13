"""The worlds in which faults are done, from start to verdict."""

import asyncio
import json
import random
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bus.cancelling import cancel
from bus.embedded import NatsServer, free_port
from bus.tasks import Problem
from lightningbus.publishing import publish_all, samples_of
from schemas import identity
from tests.chaos import faults
from tests.chaos.faults import Log
from tests.chaos.oracle import judge
from tests.chaos.report import Report
from tests.chaos.world import GROUPS, RUN, SAMPLES, World, world

Scenario = Callable[[Path, Report, random.Random, int, int], Awaitable[None]]
FINISH_SECONDS = 900.0
WARM_UP = 16
TOGETHER, FEW = 16, 4
DISK_MIB = 96
MEMORY_SECONDS = 1.0


def steps_for(rollouts: int) -> int:
    """Training steps that use at least so many rollouts."""
    return -(-rollouts // (SAMPLES * GROUPS))


class Memory:
    """Resident memory of each process, looked at each second."""

    def __init__(self, made: World) -> None:
        self._world = made
        self.seen: dict[str, list[float]] = {}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator["Memory"]:
        """Look while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            await cancel(task)

    async def _watch(self) -> None:
        while True:
            for name, size in self._world.memory().items():
                begin, most, _ = self.seen.get(name, [round(size), 0, 0])
                self.seen[name] = [begin or round(size), max(most, round(size)), round(size)]
            await asyncio.sleep(MEMORY_SECONDS)


class Busy:
    """Evaluation tasks beside the learner's, so that there is always work; `rollouts` is what was published."""

    def __init__(self, made: World) -> None:
        self._world = made
        self.rollouts: list[str] = []

    @asynccontextmanager
    async def kept(self) -> AsyncIterator["Busy"]:
        """Publish while the block runs, some tasks at a time; none is left half published at its end."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._publish(stop))
        try:
            yield self
        finally:
            stop.set()
            await task

    async def _publish(self, stop: asyncio.Event) -> None:
        fields = {"run": RUN, "agent": "default", "mode": "eval", "deadline": 120.0, "max_attempts": 30}
        while not stop.is_set():
            first = len(self.rollouts) // TOGETHER
            problems = [Problem(f"eval{first}-{n}", {"question": f"what is {first} {n}?"}) for n in range(TOGETHER)]
            await publish_all(self._world.bus, samples_of(problems, 1, **fields), timeout=300, on_done=lambda: None)
            self.rollouts += [identity.rollout_id(problem.id, 0) for problem in problems]
            while not stop.is_set() and len(self._world.tap.ended.keys() & self.rollouts) < len(self.rollouts) - FEW:
                await self._world.tap.rollouts(len(self._world.tap.ended) + 1)


@asynccontextmanager
async def at_work(
    place: Path, report: Report, name: str, steps: int, token_seconds: float, **more: Any
) -> AsyncIterator[tuple[World, Log]]:
    """A world with work to do while the block runs; then it is let finish, and judged."""
    log = Log()
    async with world(place, steps=steps, token_seconds=token_seconds, **more) as made, Memory(made).watched() as memory:
        async with Busy(made).kept() as busy:
            await made.tap.rollouts(WARM_UP)
            yield made, log
        await made.finished(FINISH_SECONDS)
        vocabulary = json.loads((made.directory / "model" / "config.json").read_text())["vocab_size"]
        report.add(name, log, await judge(made, busy.rollouts, vocabulary), memory.seen)


async def random_kills(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """``kill -9`` over everything."""
    async with at_work(place, report, "kills", steps_for(rollouts), 0.05) as (made, log):
        await faults.kills(made, log, rng, kills, rollouts)


async def standstills(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """SIGSTOP, and clocks that are wrong."""
    async with at_work(place, report, "standstills", steps_for(rollouts), 0.1) as (made, log):
        for target, hours in (("runner-0", -1), ("store", 1), ("inference-0", 1), ("learner", -1)):
            await faults.clock(made, log, target, hours)
        await faults.stops(made, log)


async def bad_network(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Every link in turn; then ClickHouse that refuses, and streams without room."""
    async with at_work(place, report, "network", steps_for(rollouts), 0.1, server=True) as (made, log):
        await faults.links(made, log)
        await faults.clickhouse_refuses(made, log)
        waited = await faults.full_streams(made, log)
        assert any(name.startswith("runner") for name in waited), waited


async def cluster(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Three brokers, every stream on all of them, and the leader killed."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    brokers = []
    for number, port in enumerate(ports):
        more = f"server_name: n{number}\ncluster {{ name: chaos, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
        brokers.append(NatsServer(place / f"nats-{number}", more=more))
    async with AsyncExitStack() as exits:
        for broker in brokers:
            exits.push_async_callback(broker.stop)
        await asyncio.gather(*(broker.start() for broker in brokers))
        async with at_work(place, report, "cluster", steps_for(rollouts // 4), 0.05, brokers=brokers) as (made, log):
            for _ in range(3):
                await faults.leader(made, log)


async def storage(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """A disk without room under JetStream, and weights that are not what they should be."""
    with small_disk(place / "disk", DISK_MIB) as disk:
        broker = NatsServer((disk or place) / "nats")
        async with AsyncExitStack() as exits:
            exits.push_async_callback(broker.stop)
            await broker.start()
            async with at_work(place, report, "storage", steps_for(rollouts // 4), 0.1, brokers=[broker]) as (
                made,
                log,
            ):
                if disk is not None:
                    await faults.full_disk(made, log, disk)
                await faults.corrupt_blobs(made, log)


async def bad_agents(place: Path, report: Report, rng: random.Random, kills: int, rollouts: int) -> None:
    """Agents that leak, fork, flood, will not end, and speak for others, beside a run that goes on."""
    async with at_work(place, report, "agents", steps_for(rollouts // 8), 0.05) as (made, log):
        for name in faults.NASTY:
            await faults.bad_agent(made, log, name)


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path | None]:
    """A file system of its own, in memory; None where mounting one is not allowed."""
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)], capture_output=True)
    if mount.returncode:
        print(f"a full disk is not tried: {mount.stderr.decode().strip()}", flush=True)
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


SCENARIOS: dict[str, Scenario] = {
    "kills": random_kills,
    "standstills": standstills,
    "network": bad_network,
    "cluster": cluster,
    "storage": storage,
    "agents": bad_agents,
}
