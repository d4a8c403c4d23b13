"""The faults: each done to a system that is at work, with the time it takes until the one hit works again."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lightningbus.bus.fleet.readiness import READY_STATES
from lightningbus.common.aio import first_completed
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.chaos.proxy import Fault
from tests.chaos.running_system import LEASE_SECONDS, RUN, TEACHER, RunningSystem
from tests.polling import HANG_SECONDS, until_answered
from tests.stream_limits import limit

STOP_SECONDS = 3 * LEASE_SECONDS
LINK_SECONDS = 6.0
DOWN_SECONDS = 8.0
RECOVERY_SECONDS = 120.0
ENGINE_OF_TEACHER = TEACHER.replace("inference", "engine")
IN_TURN = ((TEACHER, ENGINE_OF_TEACHER), ("grader",), ("learner",))
"""Processes that `kills_in_turn` kills: one of each group, group after group."""
MOST_STEPS, MOST_ROLLOUTS = 3, 8
"""Most training steps and rollouts between two kills of `kills_in_turn`."""
ROLLOUT_STREAMS = (subjects.TRAIN_ROLLOUTS, subjects.EVAL_ROLLOUTS)


@dataclass
class Log:
    """What was done, by kind of fault, and how many seconds each took to be over; in the order it was done."""

    recoveries: dict[str, list[float]] = field(default_factory=dict)

    def note(self, fault: str, seconds: float) -> None:
        self.recoveries.setdefault(fault, []).append(seconds)

    @asynccontextmanager
    async def timed(self, fault: str) -> AsyncIterator[None]:
        """The block is a recovery, and has `RECOVERY_SECONDS` at most."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                yield
        except TimeoutError:
            raise AssertionError(f"{fault}: not over within {RECOVERY_SECONDS:g} s") from None
        self.note(fault, time.monotonic() - started)


BY_NAME = {TEACHER: "teacher", ENGINE_OF_TEACHER: "teacher's engine process"}


def kind(target: str) -> str:
    """What a target is, without its number."""
    if target in BY_NAME:
        return BY_NAME[target]
    return {"inference": "inference gateway", "engine": "engine process", "nats": "nats-server"}.get(
        target.split("-")[0], target.split("-")[0]
    )


async def kills(system: RunningSystem, log: Log, rng: random.Random, count: int, rollouts: int) -> None:
    """``kill -9`` at random, spread over so many rollouts: who, and after how many, follows from the seed."""
    plan = [(rng.uniform(0.02, 0.98) * rollouts, rng.random()) for _ in range(count)]
    recovering: dict[str, asyncio.Task[None]] = {}
    started = len(system.tap.ended)
    for after, draw in sorted(plan):
        await system.tap.rollouts(started + int(after))
        free = [name for name in system.targets if name not in recovering or recovering[name].done()]
        kinds = sorted({kind(name) for name in free if system.pid(name) is not None})
        chosen = kinds[int(draw * len(kinds))]
        target = rng.choice([name for name in free if kind(name) == chosen and system.pid(name) is not None])
        since = time.monotonic()
        pid = system.signal(target, signal.SIGKILL)
        recovering[target] = asyncio.create_task(_recovered(system, log, f"kill -9 {chosen}", target, since, pid))
    await asyncio.gather(*recovering.values())


async def kills_in_turn(system: RunningSystem, log: Log, rng: random.Random, count: int) -> dict[str, int]:
    """``kill -9`` of the teacher, the grader and the learner in turn; returns how many hit a target amid work, by kind.

    Half of the kills wait until all three work and the target is amid work, the others only until the target is back
    from the kill before.
    """
    recovering: dict[int, asyncio.Task[None]] = {}
    hits: dict[str, int] = {}
    for number in range(count):
        turn = number % len(IN_TURN)
        target = rng.choice(IN_TURN[turn])
        waits = rng.random() < 0.5
        learner = system.learners["learner"]
        await asyncio.gather(*(task for key, task in recovering.items() if waits or key == turn))
        async with asyncio.timeout(RECOVERY_SECONDS):
            if target == "learner":
                await system.tap.steps_made(min(system.tap.steps + rng.randint(0, MOST_STEPS), system.steps))
            num_ended = len(system.tap.ended) + rng.randint(0, MOST_ROLLOUTS)
            await first_completed(system.tap.rollouts(num_ended), asyncio.shield(learner))
            while waits and not learner.done() and not _is_amid_work(system, target):
                await system.fleet.wait_for_change()
        assert not learner.done(), f"training is over after {number} of {count} kills"
        hits[kind(target)] = hits.get(kind(target), 0) + _is_amid_work(system, target)
        since = time.monotonic()
        pid = system.signal(target, signal.SIGKILL)
        assert pid is not None, f"{target} has no process"
        recovering[turn] = asyncio.create_task(_recovered(system, log, f"kill -9 {kind(target)}", target, since, pid))
    await asyncio.gather(*recovering.values())
    return hits


def _is_amid_work(system: RunningSystem, target: str) -> bool:
    """Whether it scores, grades or trains, as it was heard to say last."""
    name = target.replace("engine", "inference")
    beat = next((beat for beat in system.fleet.members() if beat.id == name), None)
    if beat is None or beat.state not in READY_STATES[beat.role]:
        return False
    return beat.role == "learner" or bool(beat.status.get("inflight") or beat.status.get("held"))


async def kill(system: RunningSystem, log: Log, target: str) -> None:
    """``kill -9`` of one target, and wait until it works again."""
    since = time.monotonic()
    await _recovered(system, log, f"kill -9 {kind(target)}", target, since, system.signal(target, signal.SIGKILL))


async def restart(system: RunningSystem, log: Log, target: str) -> None:
    """SIGTERM, as an operator stops a role, and a new start; wait until it works again."""
    child = await system.take_down(target)
    since = time.monotonic()
    await system.bring_up(child)
    await _recovered(system, log, f"restart {kind(target)}", target, since)


async def _recovered(
    system: RunningSystem, log: Log, fault: str, target: str, since: float, old: int | None = None
) -> None:
    async with log.timed(fault):
        await system.working(target, since, old)


async def stops(system: RunningSystem, log: Log, targets: Sequence[str] = ()) -> None:
    """SIGSTOP of each in turn, for three leases, then SIGCONT; by default of all."""
    for target in targets or system.targets:
        if system.signal(target, signal.SIGSTOP) is None:
            continue
        await asyncio.sleep(STOP_SECONDS)  # the fault itself
        since = time.monotonic()
        system.signal(target, signal.SIGCONT)
        await _recovered(system, log, f"SIGSTOP {kind(target)}", target, since)
        await _next_rollout(system, log, "")


ALL_LINK_FAULTS: tuple[Fault, ...] = ("delay", "cut", "half_open", "reset")


async def links(system: RunningSystem, log: Log, kinds: Sequence[Fault] = ALL_LINK_FAULTS) -> None:
    """Each link slow, cut, half-open and reset, one after the other."""
    for name, proxy in system.proxies.items():
        for fault in kinds:
            proxy.inject(fault)
            await asyncio.sleep(LINK_SECONDS)  # the fault itself
            since = time.monotonic()
            proxy.inject("none")
            target = "store" if name == "clickhouse" else name.removesuffix("-gateway")
            await _recovered(system, log, f"link {fault.replace('_', '-')}", target, since)
            await _next_rollout(system, log, "")


async def _next_rollout(system: RunningSystem, log: Log, fault: str) -> None:
    """Wait until one more rollout ends: whatever it was, work goes on."""
    before = len(system.tap.ended)
    started = time.monotonic()
    async with asyncio.timeout(RECOVERY_SECONDS):
        await system.tap.rollouts(before + 1)
    if fault:
        log.note(fault, time.monotonic() - started)


async def clickhouse_refuses(system: RunningSystem, log: Log) -> None:
    """ClickHouse answers, but takes no rows."""
    sql = system.sql()
    sql.command("RENAME TABLE lightningbus.raw_spans TO lightningbus.raw_spans_away")
    await asyncio.sleep(DOWN_SECONDS)  # the fault itself
    since = time.monotonic()
    sql.command("RENAME TABLE lightningbus.raw_spans_away TO lightningbus.raw_spans")
    await _recovered(system, log, "ClickHouse refuses inserts", "store", since)


async def full_streams(system: RunningSystem, log: Log) -> list[str]:
    """No room for rollouts of either mode while nobody stores them: returns who reported that it waits for room."""
    system.proxies["clickhouse"].inject("cut")
    for stream in ROLLOUT_STREAMS:
        await limit(system.bus, stream, (await system.bus.js.stream_info(stream)).state.messages + 8)
    waiting: set[str] = set()
    async with asyncio.timeout(60):
        while not waiting:
            await system.fleet.wait_for_change()
            waiting = {beat.id for beat in system.fleet.members() if beat.status.get("waits_for_room")}
    await asyncio.sleep(DOWN_SECONDS)  # the fault itself
    system.proxies["clickhouse"].inject("none")
    for stream in ROLLOUT_STREAMS:
        await limit(system.bus, stream, None)
    await _next_rollout(system, log, "stream full")
    return sorted(waiting)


async def full_disk(system: RunningSystem, log: Log, disk: Path) -> None:
    """Not a byte left where JetStream writes; then somebody makes room."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    await asyncio.sleep(DOWN_SECONDS)  # the fault itself
    filler.unlink()
    await _next_rollout(system, log, "disk full")


async def corrupt_blobs(system: RunningSystem, log: Log) -> None:
    """Bytes that are not those of their manifest: refused by digest, reported, fetched again once they are right."""
    await system.learners["learner"]  # from here on the versions are ours
    actual = await system.bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
    assert actual is not None
    last, sequence = actual
    whole = last.chain[0].blob if last.chain else last.blobs[0]
    path = system.directory / "good"
    await system.bus.object_store.get(whole, path)
    good = path.read_bytes()
    middle = len(good) // 2
    for number, bad in enumerate(
        (good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], good[:middle]), start=1
    ):
        version = last.version + number
        name = f"policy-{version:06d}-{last.epoch}"
        await system.bus.object_store.put(subjects.WEIGHT_BUCKET, name, bad)
        fields = {"kind": "full", "chain": (), "fingerprint": "", "blobs": (replace(whole, name=name),)}
        manifest = replace(last, version=version, parent=version - 1, **fields)
        sequence = await system.bus.publish(
            subjects.weights("policy"), manifest, msg_id=f"chaos:{version}", expect_last=sequence
        )
        async with asyncio.timeout(RECOVERY_SECONDS):
            while not all("not fetched" in str(node.status["problem"]) for node in _nodes(system)):
                await system.fleet.wait_for_change()
        assert {(node.state, node.version) for node in _nodes(system)} == {("ready", version - 1)}, "the old one serves"
        await system.bus.object_store.put(subjects.WEIGHT_BUCKET, name, good)
        async with log.timed("blob corrupted" if len(bad) == len(good) else "blob truncated"):
            while {node.version for node in _nodes(system)} != {version}:
                await system.fleet.wait_for_change()


def _nodes(system: RunningSystem) -> list[Heartbeat]:
    return [beat for beat in system.fleet.members() if beat.role == "inference"]


async def clock(system: RunningSystem, log: Log, target: str, hours: float) -> None:
    """One process's clock is set by hours, and stays so."""
    (system.directory / "skews" / str(system.pid(target))).write_text(str(hours * 3600))
    await _next_rollout(system, log, f"clock {hours:+g} h")


NASTY: dict[str, tuple[Outcome, dict[str, Any]]] = {
    "leaks": ("agent_error", {"memory_limit_gib": 0.5}),
    "forks_and_leaves": ("ok", {}),
    "ignores_sigterm": ("timeout", {}),
    "floods": ("ok", {}),
    "prints_binary": ("ok", {}),
    "writes_into_our_connection": ("agent_error", {}),
    "speaks_for_another": ("ok", {}),
    "sends_50_mb": ("ok", {}),
}
"""How a rollout of each bad agent ends, and what its runner is told; ``ok`` is one that was told no, and lives."""


async def bad_agent(system: RunningSystem, log: Log, name: str) -> None:
    """A bad agent, then a good rollout of the same runner."""
    outcome, settings = NASTY[name]
    await system.runner(name, entrypoint=f"hostile:{name}", **settings)
    deadline = 15.0 if outcome == "timeout" else HANG_SECONDS
    fields = {"run_id": RUN, "agent": name, "mode": "eval", "deadline": deadline}
    bad = [Task(id=f"{name}-{n}", input={}, **fields) for n in range(2)]
    for task in bad:
        await TaskPublisher(system.bus).publish_task(task)
    for task in bad:
        await system.tap.has(f"{task.id}.0")
    async with log.timed(f"agent {name.replace('_', ' ')}"):
        await TaskPublisher(system.bus).publish_task(Task(id=f"{name}-calm", input={"calm": True}, **fields))
        await system.tap.has(f"{name}-calm.0")
    ended = {end.rollout: end.outcome for end in system.tap.ends if end.agent == name}
    assert ended == {f"{name}-0.0": outcome, f"{name}-1.0": outcome, f"{name}-calm.0": "ok"}, ended
    await system.others[name].stop_all()


async def leader(system: RunningSystem, log: Log) -> None:
    """``kill -9`` of the server that leads the spans, in a cluster of three."""
    info = await until_answered(lambda: system.bus.js.stream_info(subjects.TRAIN_ROLLOUTS))
    name = info.cluster.leader if info.cluster else None
    broker = system.brokers[int((name or "n0")[1:])]
    assert broker.process is not None
    broker.process.kill()
    await _next_rollout(system, log, "kill -9 cluster leader")
