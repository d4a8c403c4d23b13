"""Faults of roles that are not there: a learner that is stopped, hung or crash-looping, and tasks nobody can run."""

import asyncio
import signal
import time
from typing import Any

import msgpack

from lightningbus.schemas import subjects
from lightningbus.schemas.codec import schema_of
from lightningbus.schemas.tasks import Task
from tests.chaos.faults import Log
from tests.chaos.running_system import RUN, RunningSystem
from tests.polling import until_answered


async def absent_learner(system: RunningSystem, log: Log) -> None:
    """Nobody trains: an alert names the learner, and is over once it is back."""
    since = time.time_ns()
    child = await system.take_down("learner")
    await system.alert_is_stored("learner", since)
    async with log.timed("learner absent"):
        await system.bring_up(child)
        await system.tap.steps_made(system.tap.steps + 1)


async def hung_learner(system: RunningSystem, log: Log) -> None:
    """Its process lives and does nothing: an alert names it."""
    since = time.time_ns()
    system.signal("learner", signal.SIGSTOP)
    await system.alert_is_stored("learner", since)
    async with log.timed("learner hung"):
        system.signal("learner", signal.SIGCONT)
        await system.tap.steps_made(system.tap.steps + 1)


MALFORMED: tuple[dict[str, Any], ...] = (
    {"input": b"\x00\xff"},
    {"input": {"at": b"bytes within"}},
    {"input": 1, "deadline": "soon"},
    {"input": 1, "group_size": 0},
)
"""Fields of tasks that no runner can run, packed by MessagePack as they are."""


async def malformed_tasks(system: RunningSystem, log: Log) -> None:
    """As many bad tasks as there are slots, of each kind in turn: each is a dead letter, and good ones go on."""
    runners = [beat for beat in system.fleet.members() if beat.role == "runner"]
    slots = sum(int(str(beat.status["busy"]).partition("/")[2]) for beat in runners)
    headers = {subjects.SCHEMA_HEADER: schema_of(Task)}
    for kind, fields in enumerate((*MALFORMED, {"input": msgpack.Timestamp(1)})):
        letters = await _num_dead_letters(system)
        for number in range(slots):
            task = {"id": f"bad-{kind}-{number}", "run_id": RUN, "agent": "default", "mode": "eval", **fields}
            await system.bus.js.publish(subjects.task("eval", "default"), msgpack.packb(task), headers=headers)
        async with log.timed("tasks malformed"):
            while await _num_dead_letters(system) < letters + slots:
                await asyncio.sleep(0.2)
            await system.tap.rollouts(len(system.tap.ended) + slots)


async def _num_dead_letters(system: RunningSystem) -> int:
    return int((await until_answered(lambda: system.bus.js.stream_info(subjects.DLQ))).state.messages)
