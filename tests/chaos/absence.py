"""Faults of roles that are not there: a learner that is stopped, hung or crash-looping, and tasks nobody can run."""

import asyncio
import signal
import time
from typing import Any

import msgpack

from schemas import identity, subjects
from schemas.codec import schema_of
from schemas.events import Task
from tests.chaos.faults import RECOVERY_SECONDS, Log
from tests.chaos.world import RUN, World


async def absent_learner(world: World, log: Log) -> None:
    """Nobody trains: an alert names the learner, and is over once it is back."""
    since = time.time_ns()
    child = await world.take_down("learner")
    await world.alert_is_stored("learner", since)
    async with log.timed("learner absent"):
        await world.bring_up(child)
        await world.tap.steps_made(world.tap.steps + 1)


async def hung_learner(world: World, log: Log) -> None:
    """Its process lives and does nothing: an alert names it."""
    since = time.time_ns()
    world.signal("learner", signal.SIGSTOP)
    await world.alert_is_stored("learner", since)
    async with log.timed("learner hung"):
        world.signal("learner", signal.SIGCONT)
        await world.tap.steps_made(world.tap.steps + 1)


MALFORMED: tuple[dict[str, Any], ...] = (
    {"input": b"\x00\xff"},
    {"input": {"at": b"bytes within"}},
    {"input": 1, "deadline": "soon"},
    {"input": 1, "samples": 0},
)
"""Fields of tasks that no runner can run, packed by MessagePack as they are."""


async def malformed_tasks(world: World, log: Log) -> None:
    """As many bad tasks as there are slots, of each kind: each is a dead letter, and good ones go on."""
    runners = [beat for beat in world.fleet.members() if beat.role == "runner"]
    slots = sum(int(str(beat.detail["busy"]).partition("/")[2]) for beat in runners)
    headers = {subjects.SCHEMA_HEADER: schema_of(Task)}
    count = 0
    for fields in (*MALFORMED, {"input": msgpack.Timestamp(1)}):
        for _ in range(slots):
            count += 1
            task = {"id": f"bad-{count}", "run": RUN, "agent": "default", "mode": "eval", **fields}
            await world.bus.js.publish(subjects.task("eval", "default"), msgpack.packb(task), headers=headers)
    async with log.timed("tasks malformed"), asyncio.timeout(RECOVERY_SECONDS):
        for number in range(1, count + 1):
            await world.tap.has(identity.rollout_id(f"bad-{number}", 0))
        await world.tap.rollouts(len(world.tap.ended) + slots)
