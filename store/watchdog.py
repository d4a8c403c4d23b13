"""Notices when nothing moves any more, and says who is waiting for whom."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass

from nats.errors import Error as NatsError

from bus import Bus, Fleet, metrics
from bus.nodes import serves
from schemas import subjects
from schemas.events import Alarm, Heartbeat
from store.ingester import Ingester
from store.writer import Writer

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known now; ``since_rollout`` and ``since_step`` are seconds without one."""

    since_rollout: float
    since_step: float
    tasks: int
    """Tasks in the queue, those being worked on included."""
    backlog: int
    """Messages the store has not written yet."""
    store_problem: str
    members: tuple[Heartbeat, ...]

    def of(self, role: str) -> list[Heartbeat]:
        """Who is there in a role."""
        return [beat for beat in self.members if beat.role == role]


@dataclass(frozen=True, slots=True)
class Finding:
    """Who starves, or is missing, and why."""

    role: str
    reason: str


def diagnose(facts: Facts, stall_seconds: float) -> Finding | None:
    """What stands still, for longer than ``stall_seconds``; None: nothing does, or there is nothing to do. Pure."""
    if short := next((beat for beat in (*facts.of("store"), *facts.of("learner")) if beat.detail.get("disk")), None):
        return Finding(short.role, f"{short.role} {short.id}: {short.detail['disk']}")
    learners = [beat for beat in facts.of("learner") if beat.state in ("waiting", "training")]
    if facts.since_rollout >= stall_seconds and facts.tasks > 0:
        return _why_no_rollout(facts)
    if learners and facts.since_step >= stall_seconds:
        doing = (
            f"no training step for {facts.since_step:.0f} s: the learner is {learners[0].state}, {_said(learners[0])}"
        )
        return Finding("learner", doing if facts.tasks else f"{doing}; no task is left in the queue")
    return None


def _why_no_rollout(facts: Facts) -> Finding:
    still = f"no rollout has finished for {facts.since_rollout:.0f} s and {facts.tasks} tasks wait"
    if facts.store_problem:
        return Finding("store", f"{still}: the store cannot write: {facts.store_problem}")
    runners, nodes = facts.of("runner"), facts.of("inference")
    if not [beat for beat in runners if beat.state == "running"]:
        return Finding("runner", f"{still}: no runner is there to take them")
    if not [beat for beat in nodes if serves(beat.state)]:
        states = ", ".join(f"{beat.id} is {beat.state}" for beat in nodes) or "there is none"
        return Finding("runner", f"{still}: no inference node is ready ({states})")
    if full := next((beat.detail["waits_for_room"] for beat in runners if beat.detail.get("waits_for_room")), ""):
        return Finding("store", f"{still}: {full} is full, {facts.backlog} messages are not written yet")
    if not any(str(beat.detail.get("busy", "0")).split("/")[0] != "0" for beat in runners):
        agents = ", ".join(sorted({str(beat.detail.get("agent")) for beat in runners}))
        return Finding(
            "runner", f"{still}: the runners, of agent {agents}, get none of them; are they another agent's?"
        )
    return Finding("runner", f"{still}: the runners are busy, but no agent comes to an end")


def _said(beat: Heartbeat) -> str:
    return ", ".join(f"{key} {value}" for key, value in beat.detail.items())


class Watchdog:
    """Looks every two seconds; `alarm` is what it found, empty while all is well."""

    def __init__(self, bus: Bus, fleet: Fleet, ingester: Ingester, writer: Writer, stall_seconds: float) -> None:
        self._bus, self._fleet, self._stall_seconds = bus, fleet, stall_seconds
        self._ingester, self._writer = ingester, writer
        self._raised: Finding | None = None
        self._work_since = self._learner_since = time.monotonic()
        self.alarm = ""

    async def run(self) -> None:
        """Watch for ever; what is found is published once, and again when it is over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except Exception:
                log.exception("the watchdog looks again in %.0f s", LOOK_SECONDS)

    async def _look(self) -> None:
        try:
            tasks = (await self._bus.js.stream_info(subjects.TASKS)).state.messages
        except NatsError:
            return  # without a bus nobody could be told either
        metrics.tasks_queued.set(tasks)
        found = diagnose(self._facts(tasks), self._stall_seconds)
        self.alarm = found.reason if found else ""
        if (found and found.role) != (self._raised and self._raised.role):
            if self._raised is not None:
                await self._publish(self._raised, over=True)
            if found is not None:
                await self._publish(found, over=False)
            self._raised = found

    def _facts(self, tasks: int) -> Facts:
        now, writer, members = time.monotonic(), self._writer, tuple(self._fleet.members())
        if not tasks:
            self._work_since = now
        if not any(beat.role == "learner" for beat in members):
            self._learner_since = now
        return Facts(
            since_rollout=now - max(writer.last_rollout, self._work_since),
            since_step=now - max(writer.last_step, self._learner_since),
            tasks=tasks,
            backlog=self._ingester.pending,
            store_problem=writer.problem,
            members=members,
        )

    async def _publish(self, finding: Finding, over: bool) -> None:
        if over:
            log.info("over: %s", finding.reason)
        else:
            log.warning("ALARM: %s", finding.reason)
        metrics.alarm.labels(finding.role).set(not over)
        alarm = Alarm(role=finding.role, reason=finding.reason, over=over, raised_ns=time.time_ns())  # type: ignore[arg-type]
        msg_id = f"alarm:{alarm.role}:{alarm.raised_ns}"
        await self._bus.publish(subjects.ALERT, alarm, msg_id=msg_id, timeout=math.inf)
