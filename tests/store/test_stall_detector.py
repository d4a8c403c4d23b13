"""What stands still, and who is said to be waiting for whom."""

import asyncio
from typing import Any, get_args

import pytest

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode, encode
from lightningbus.schemas.fleet import Alert, Heartbeat, Role
from lightningbus.schemas.grading import GradingRequest
from lightningbus.schemas.tasks import Task
from lightningbus.store.role_liveness import RoleKey, RoleLiveness
from lightningbus.store.stall_detector import StallThresholds, SystemSnapshot, diagnose
from lightningbus.store.step_pace import StepPace
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start
from tests.stream_limits import limit

RUNNER = Heartbeat(role="runner", id="r", state="running", status={"busy": "4/4", "agent": "a"}, sent_at_ns=1)
NODE = Heartbeat(role="inference", id="n", state="ready", sent_at_ns=1)
GRADER = Heartbeat(role="grader", id="g", state="grading", sent_at_ns=1)
TRAIN = subjects.TRAIN_ROLLOUT
ROOMLESS = Heartbeat(role="runner", id="r", state="running", status={"waits_for_room": TRAIN}, sent_at_ns=1)
LEARNER = Heartbeat(role="learner", id="l", state="waiting", status={"groups": "3/8"}, sent_at_ns=1)


def other(beat: Heartbeat, **changes: Any) -> Heartbeat:
    return Heartbeat(**{name: changes.get(name, getattr(beat, name)) for name in Heartbeat.__struct_fields__})


def snapshot(*members: Heartbeat, **changes: Any) -> SystemSnapshot:
    still = {
        "seconds_since_rollout": 90.0,
        "seconds_since_step": {},
        "num_tasks": 7,
        "num_pending": 0,
        "store_problem": "",
    }
    return SystemSnapshot(**{**still, **changes}, members=members)


@pytest.mark.parametrize(
    ("state", "role", "reason"),
    [
        (snapshot(RUNNER, NODE, num_tasks=0), None, ""),
        (snapshot(RUNNER, NODE, seconds_since_rollout=10.0), None, ""),
        (snapshot(RUNNER, NODE, seconds_since_rollout=1.0, training_bias="run a leaves out"), "learner", "leaves out"),
        (snapshot(NODE), "runner", "no runner is there"),
        (
            snapshot(RUNNER, other(NODE, state="awaiting_weights")),
            "runner",
            "no inference node is ready (n is awaiting_weights)",
        ),
        (
            snapshot(other(RUNNER, state="refused"), NODE),
            "runner",
            "no runner is there to take them (r is refused)",
        ),
        (snapshot(RUNNER), "runner", "no inference node is ready (there is none)"),
        (snapshot(RUNNER, NODE, store_problem="disk full"), "store", "the store cannot write: disk full"),
        (
            snapshot(other(RUNNER, status={"waits_for_room": "lb.rollout.train"}), NODE, num_pending=9),
            "store",
            "9 messages",
        ),
        (snapshot(other(RUNNER, status={"busy": "0/4", "agent": "b"}), NODE), "runner", "of agent b, get none"),
        (
            snapshot(ROOMLESS, NODE, lags={TRAIN: {"learner-policy": 900, "store": 20}}),
            "learner",
            "learner-policy lags (messages",
        ),
        (snapshot(ROOMLESS, NODE, lags={TRAIN: {"learner": 9, "store": 700}}), "store", "learner 9, store 700"),
        (snapshot(RUNNER, NODE), "runner", "no agent comes to an end"),
        (snapshot(RUNNER, NODE, num_tasks=0, num_ungraded=9), "grader", "9 wait for a grade: no grader is there"),
        (snapshot(RUNNER, NODE, num_ungraded=9), "grader", "9 wait for a grade: no grader is there"),
        (snapshot(RUNNER, NODE, GRADER, num_ungraded=9), "runner", "no agent comes to an end"),
        (snapshot(RUNNER, NODE, GRADER, num_tasks=0, num_ungraded=9), "grader", "and come to no end"),
        (
            snapshot(other(GRADER, status={"waits_for_room": "lb.events"}), num_tasks=0, num_ungraded=9, num_pending=4),
            "store",
            "lb.events",
        ),
        (
            snapshot(absent={RoleKey("grader"): 31.0}, num_tasks=0, num_ungraded=9, seconds_since_rollout=31.0),
            "grader",
            "no grader has been there for 31 s",
        ),
        (snapshot(absent={RoleKey("learner"): 31.0}, num_tasks=0), "learner", "no learner has been there for 31 s"),
        (snapshot(absent={RoleKey("learner"): 9.0}, num_tasks=0), None, ""),
        (snapshot(absent={RoleKey("runner"): 31.0}, num_tasks=0), None, ""),
        (
            snapshot(LEARNER, absent={RoleKey("inference"): 31.0}, num_tasks=0),
            "inference",
            "no inference node has been there",
        ),
        (snapshot(num_starts={"": 4}, num_tasks=0), "learner", "has started 4 times without a training step between"),
        (
            snapshot(other(LEARNER, state="training"), seconds_since_step={"": 301.0}, num_tasks=0),
            "learner",
            "does not get on",
        ),
        (
            snapshot(LEARNER, seconds_since_rollout=0.0, seconds_since_step={"": 99.0}),
            "learner",
            "the learner is waiting, groups 3/8",
        ),
        (snapshot(LEARNER, seconds_since_step={"": 99.0}, num_tasks=0), "learner", "no task is left"),
        (
            snapshot(other(LEARNER, status={"disk": "2 MiB free"}), seconds_since_rollout=0.0),
            "learner",
            "learner l: 2 MiB free",
        ),
        (snapshot(other(RUNNER, status={"disk": "none"}), seconds_since_rollout=0.0), None, ""),
        (snapshot(other(LEARNER, state="done"), seconds_since_step={"": 99.0}, num_tasks=0), None, ""),
        (snapshot(other(LEARNER, state="done", status={"disk": "none"}), seconds_since_rollout=0.0), None, ""),
    ],
)
def test_who_starves(state: SystemSnapshot, role: str | None, reason: str) -> None:
    stalls = diagnose(state, StallThresholds(stall_timeout_seconds=60.0, absent_seconds=30.0))
    assert [stall.role for stall in stalls] == ([role] if role else [])
    assert all(reason in stall.reason for stall in stalls)


def test_who_said_that_it_goes_is_not_missed_and_who_did_not_is() -> None:
    liveness = RoleLiveness([], 0.0)
    liveness.observe([RUNNER, LEARNER], 1.0)
    liveness.observe([RUNNER, other(LEARNER, state="done")], 2.0)
    liveness.observe([], 40.0)
    assert liveness.absent(40.0) == {RoleKey("runner"): 38.0}
    assert RoleLiveness(["learner"], 0.0).absent(31.0) == {RoleKey("learner"): 31.0}, "expected, and never seen"
    expected = RoleLiveness(["learner"], 0.0)
    expected.observe([other(LEARNER, state="done")], 2.0)
    assert expected.absent(3600.0) == {}, "expected, and done"


WRITER, CHECKER = (other(LEARNER, id=model, model=model) for model in ("writer", "checker"))


def test_a_learner_does_not_stand_in_for_that_of_another_model() -> None:
    liveness = RoleLiveness(["learner"], 0.0)
    liveness.observe([WRITER, CHECKER], 1.0)
    liveness.observe([WRITER], 40.0)
    assert liveness.absent(40.0) == {RoleKey("learner", "checker"): 39.0}
    liveness.observe([WRITER, other(CHECKER, state="done")], 41.0)
    liveness.observe([WRITER], 90.0)
    assert liveness.absent(90.0) == {}, "one that is done is not missed while the other goes on"
    assert liveness.models_of("learner") == ["checker", "writer"]


@pytest.mark.parametrize(
    ("state", "model", "reason"),
    [
        (
            snapshot(WRITER, absent={RoleKey("learner", "checker"): 31.0}, num_tasks=0),
            "checker",
            "no learner of checker",
        ),
        (
            snapshot(WRITER, CHECKER, seconds_since_step={"writer": 1.0, "checker": 99.0}, num_tasks=0),
            "checker",
            "the learner of checker is waiting",
        ),
        (
            snapshot(WRITER, seconds_since_step={"writer": 99.0}, num_tasks=0),
            "writer",
            "for 99 s: the learner is waiting",
        ),
        (
            snapshot(WRITER, CHECKER, num_starts={"writer": 0, "checker": 4}, num_tasks=0),
            "checker",
            "the learner of checker has started 4 times",
        ),
        (snapshot(WRITER, other(CHECKER, state="done"), seconds_since_step={"checker": 99.0}, num_tasks=0), None, ""),
    ],
)
def test_an_alert_names_the_model_where_there_are_several(
    state: SystemSnapshot, model: str | None, reason: str
) -> None:
    stalls = diagnose(state, StallThresholds(stall_timeout_seconds=60.0, absent_seconds=30.0))
    assert [stall.model for stall in stalls] == ([model] if model else [])
    assert all(reason in stall.reason for stall in stalls)


def test_a_learner_that_starts_again_and_again_without_a_step_is_counted() -> None:
    """It is back before it is missed, each time: its absence alone would never be an alert."""
    liveness = RoleLiveness([], 0.0)
    for number in range(5):
        liveness.observe([other(LEARNER, id=f"l-{number}", pid=number)], 20.0 * number)
        liveness.observe([], 20.0 * number + 10)
    assert (
        liveness.count_starts(RoleKey("learner"), after=-1.0, now=90.0) == 5
        and liveness.since(RoleKey("learner")) == 0.0
    )
    assert liveness.count_starts(RoleKey("learner"), after=30.0, now=90.0) == 3, "the others were before the last step"


async def test_an_alert_is_an_event_and_is_over_when_work_goes_on(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url, stall_timeout_seconds=1.0)
    await TaskPublisher(bus).publish_task(Task(id="t", run_id="r", agent="calc", input=1))
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE NOT resolved", 1)
    ((role, reason),) = store.sql.query("SELECT role, reason FROM alerts").result_rows
    assert role == "runner" and "no runner is there to take them" in reason
    async with bus.fleet("store") as fleet, asyncio.timeout(HANG_SECONDS):
        while not any("no runner" in str(beat.status.get("alert")) for beat in fleet.members()):
            await fleet.wait_for_change()
    await bus.js.purge_stream(subjects.TASKS)
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE resolved", 1)


async def test_an_alert_of_an_earlier_start_is_over_when_work_goes_on(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    """The store that raised it ended with its run, which is resumed."""
    stall = Reason("learner", "no training step for 60 s: the learner is waiting")
    await AlertPublisher(bus, "stall").update({"learner:policy": stall})
    store = await asyncio.to_thread(start_store, nats_url)
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE resolved", 1)
    assert store.sql.query("SELECT reason FROM alerts WHERE resolved").result_rows == [(stall.sentence,)]


async def test_a_rollout_that_no_grader_takes_is_an_alert_that_names_the_grader(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    (whole,) = batches("t", 0, parts=1)
    await bus.publish(subjects.grading("train"), GradingRequest(ending=whole), msg_id="t")
    store = await asyncio.to_thread(start_store, nats_url, stall_timeout_seconds=1.0)
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE NOT resolved", 1)
    ((role, reason),) = store.sql.query("SELECT role, reason FROM alerts").result_rows
    assert role == "grader" and "1 wait for a grade: no grader is there" in reason


async def test_a_learner_that_is_gone_is_an_alert_also_when_its_stream_is_full(
    bus: Bus, nats_url: str, start_store: Start
) -> None:
    """The alert has a stream of its own; whoever reads training rollouts no more cannot hold it up."""
    store = await asyncio.to_thread(start_store, nats_url, absent_seconds=1.0)
    await limit(bus, subjects.TRAIN_ROLLOUTS, 1)
    (whole,) = batches("t", 0, parts=1)
    await bus.publish(subjects.TRAIN_ROLLOUT, whole, msg_id="t")
    async with bus.fleet("store") as fleet, asyncio.timeout(HANG_SECONDS):
        async with bus.heartbeat("learner", "l", lambda: {"state": "waiting"}):
            while not fleet.members():
                await fleet.wait_for_change()
            for _ in range(5):
                await fleet.wait_for_change()
        while not any("no learner has been there" in str(beat.status.get("alert")) for beat in fleet.members()):
            await fleet.wait_for_change()
    await asyncio.to_thread(store.until, "SELECT count() FROM alerts WHERE role = 'learner' AND NOT resolved", 1)


def test_every_role_that_can_be_missing_can_have_an_alert() -> None:
    liveness = RoleLiveness([], 0.0)
    liveness.observe([other(RUNNER, role=role, id=role) for role in get_args(Role)], 1.0)
    for stall in diagnose(snapshot(absent=liveness.absent(99.0)), StallThresholds(60, 60)):
        alert = Alert(role=stall.role, reason=stall.reason, fired_at_ns=1)  # type: ignore[arg-type]
        assert decode(Alert, encode(alert)) == alert


def test_a_step_is_late_by_the_pace_of_the_learner() -> None:
    pace = StepPace()
    assert pace.find_limit("", 60.0) == 180.0, "the first one compiles"
    pace.observe({"": 100.0})
    assert pace.find_limit("", 60.0) == 180.0
    for at in 150.0, 150.0:
        pace.observe({"": at})
        assert pace.find_limit("", 60.0) == 150.0
    late = {"seconds_since_rollout": 1.0, "seconds_since_step": {"": 140.0}}
    assert not diagnose(snapshot(RUNNER, NODE, LEARNER, step_limits={"": 150.0}, **late), StallThresholds(60, 60))
    (stall,) = diagnose(snapshot(RUNNER, NODE, LEARNER, step_limits={"": 135.0}, **late), StallThresholds(60, 60))
    assert stall.reason.startswith("no training step for 140 s")


def test_a_learner_that_was_stopped_and_is_back_begins_anew() -> None:
    liveness, key = RoleLiveness([], 0.0), RoleKey("learner", LEARNER.model)
    liveness.observe([LEARNER], 1.0)
    liveness.observe([other(LEARNER, state="stopping")], 10.0)
    assert liveness.since(key) == 1.0
    liveness.observe([other(LEARNER, pid=LEARNER.pid + 1)], 60.0)
    assert liveness.since(key) == 60.0
    liveness.observe([other(LEARNER, pid=LEARNER.pid + 2)], 90.0)
    assert liveness.since(key) == 60.0, "nobody stopped that one on purpose"


@pytest.mark.parametrize(
    ("role", "state"), [("learner", "stopping"), ("inference", "draining"), ("learner", "waiting")]
)
async def test_a_process_that_announces_its_stop_and_falls_silent_is_not_missing(
    bus: Bus, role: str, state: str
) -> None:
    """As a learner whose training ends early, by a callback or a budget, while evaluations go on."""
    now, liveness = 0.0, RoleLiveness([], 0.0)
    async with bus.fleet(role) as here, Fleet(bus.nc, role, lambda: now) as fleet, asyncio.timeout(HANG_SECONDS):
        async with bus.heartbeat(role, "l", lambda: {"state": state}):
            while not fleet.members():
                await here.wait_for_change()
        await bus.nc.flush()
        for _ in range(20):
            liveness.observe(fleet.members(), now)
            now += 2.0
    assert bool(liveness.absent(now)) == (state == "waiting")


def test_a_learner_that_waits_because_attempts_fail_is_said_to() -> None:
    waiting = {
        "seconds_since_rollout": 1.0,
        "seconds_since_step": {"": 95.0},
        "last_failure": "agent_error: no context",
    }
    (stall,) = diagnose(snapshot(RUNNER, NODE, LEARNER, num_failed_attempts=6087, **waiting), StallThresholds(60, 60))
    assert stall.reason.endswith("; the last 6,087 training attempts failed, the newest with agent_error: no context")
    (stall,) = diagnose(snapshot(RUNNER, NODE, LEARNER, num_failed_attempts=3, **waiting), StallThresholds(60, 60))
    assert "attempts" not in stall.reason, "a few may be chance"


def test_a_stall_keeps_its_cause_whatever_the_learner_says_of_itself() -> None:
    beats = [other(LEARNER, status=status) for status in ({"groups": "3/8"}, {"reward": 1e-05, "disk": ""})]
    beats.append(other(LEARNER, state="training", status={}))
    late = {"seconds_since_rollout": 1.0, "seconds_since_step": {"": 95.0}}
    stalls = [diagnose(snapshot(RUNNER, NODE, beat, **late), StallThresholds(60, 60)) for beat in beats]
    assert {stall.cause for (stall,) in stalls} == {"learner::no_step"} and len({s.reason for (s,) in stalls}) == 3


def test_an_alert_of_the_learner_itself_is_not_said_twice() -> None:
    says = other(LEARNER, status={"groups": "3/8", "alert": "learner of policy: no reward"})
    late = {"seconds_since_rollout": 1.0, "seconds_since_step": {"": 95.0}}
    (stall,) = diagnose(snapshot(RUNNER, NODE, says, **late), StallThresholds(60, 60))
    assert "no reward" not in stall.reason
