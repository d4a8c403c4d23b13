"""What stands still, and who is said to be waiting for whom."""

import asyncio
from typing import Any

import pytest

from bus import Bus
from schemas import subjects
from schemas.events import Heartbeat, Task
from store.watchdog import Facts, diagnose
from tests.store.conftest import Start

RUNNER = Heartbeat(role="runner", id="r", state="running", detail={"busy": "4/4", "agent": "a"}, sent_ns=1)
NODE = Heartbeat(role="inference", id="n", state="ready", sent_ns=1)
LEARNER = Heartbeat(role="learner", id="l", state="waiting", detail={"groups": "3/8"}, sent_ns=1)


def other(beat: Heartbeat, **changes: Any) -> Heartbeat:
    return Heartbeat(**{name: changes.get(name, getattr(beat, name)) for name in Heartbeat.__struct_fields__})


def facts(*members: Heartbeat, **changes: Any) -> Facts:
    still = {"since_rollout": 90.0, "since_step": 0.0, "tasks": 7, "backlog": 0, "store_problem": ""}
    return Facts(**{**still, **changes}, members=members)


@pytest.mark.parametrize(
    ("found", "role", "reason"),
    [
        (facts(RUNNER, NODE, tasks=0), None, ""),
        (facts(RUNNER, NODE, since_rollout=10.0), None, ""),
        (facts(NODE), "runner", "no runner is there"),
        (facts(RUNNER, other(NODE, state="stale")), "runner", "no inference node is ready (n is stale)"),
        (facts(RUNNER), "runner", "no inference node is ready (there is none)"),
        (facts(RUNNER, NODE, store_problem="disk full"), "store", "the store cannot write: disk full"),
        (facts(other(RUNNER, detail={"waits_for_room": "lb.rollout.train"}), NODE, backlog=9), "store", "9 messages"),
        (facts(other(RUNNER, detail={"busy": "0/4", "agent": "b"}), NODE), "runner", "of agent b, get none"),
        (facts(RUNNER, NODE), "runner", "no agent comes to an end"),
        (facts(LEARNER, since_rollout=0.0, since_step=99.0), "learner", "the learner is waiting, groups 3/8"),
        (facts(LEARNER, since_step=99.0, tasks=0), "learner", "no task is left"),
        (facts(other(LEARNER, detail={"disk": "2 MiB free"}), since_rollout=0.0), "learner", "learner l: 2 MiB free"),
        (facts(other(RUNNER, detail={"disk": "none"}), since_rollout=0.0), None, ""),
        (facts(other(LEARNER, state="done"), since_step=99.0, tasks=0), None, ""),
    ],
)
def test_who_starves(found: Facts, role: str | None, reason: str) -> None:
    finding = diagnose(found, 60.0)
    assert (finding and finding.role) == role
    assert finding is None or reason in finding.reason


async def test_an_alarm_is_an_event_and_is_over_when_work_goes_on(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url, stall_seconds=1.0)
    await bus.publish_task(Task(id="t", run="r", agent="calc", input=1))
    await asyncio.to_thread(store.until, "SELECT count() FROM alarms WHERE NOT over", 1)
    ((role, reason),) = store.sql.query("SELECT role, reason FROM alarms").result_rows
    assert role == "runner" and "no runner is there to take them" in reason
    async with bus.fleet("store") as fleet, asyncio.timeout(10):
        while not any("no runner" in str(beat.detail.get("alarm")) for beat in fleet.members()):
            await fleet.changed()
    await bus.js.purge_stream(subjects.TASKS)
    await asyncio.to_thread(store.until, "SELECT count() FROM alarms WHERE over", 1)
