"""Faults of roles that are not there: a learner that is stopped, hung or crash-looping, and tasks nobody can run."""

import asyncio
import signal
import time
from typing import Any

import msgpack

from schemas import subjects
from schemas.codec import schema_of
from schemas.tasks import Task
from tests.chaos.faults import Log
from tests.chaos.world import RUN, World
from tests.polling import until_answered


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
    {"input": 1, "group_size": 0},
)
"""Fields of tasks that no runner can run, packed by MessagePack as they are."""


async def malformed_tasks(world: World, log: Log) -> None:
    """As many bad tasks as there are slots, of each kind in turn: each is a dead letter, and good ones go on."""
    runners = [beat for beat in world.fleet.members() if beat.role == "runner"]
    slots = sum(int(str(beat.status["busy"]).partition("/")[2]) for beat in runners)
    headers = {subjects.SCHEMA_HEADER: schema_of(Task)}
    for kind, fields in enumerate((*MALFORMED, {"input": msgpack.Timestamp(1)})):
        letters = await _num_dead_letters(world)
        for number in range(slots):
            task = {"id": f"bad-{kind}-{number}", "run_id": RUN, "agent": "default", "mode": "eval", **fields}
            await world.bus.js.publish(subjects.task("eval", "default"), msgpack.packb(task), headers=headers)
        async with log.timed("tasks malformed"):
            while await _num_dead_letters(world) < letters + slots:
                await asyncio.sleep(0.2)
            await world.tap.rollouts(len(world.tap.ended) + slots)


async def _num_dead_letters(world: World) -> int:
    return int((await until_answered(lambda: world.bus.js.stream_info(subjects.DLQ))).state.messages)
