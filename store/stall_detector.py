"""Notices when nothing moves any more, and says who is waiting for whom."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nats.errors import Error as NatsError

from bus.client import Bus
from bus.errors import BusError
from bus.fleet.heartbeats import Fleet
from bus.fleet.node_state import serves
from bus.fleet.readiness import WORKING
from bus.streams import ROLLOUT_READERS
from common.observability import metrics
from schemas import subjects
from schemas.fleet import Alert, Heartbeat
from store.ingest.ingester import Ingester
from store.ingest.writer import Writer
from store.roster import Roster
from store.settings import StoreSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which something is an alarm, and starts of a learner without a step between."""

    stall_seconds: float
    absent_seconds: float
    starts: int = 4


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
    absent: Mapping[str, float] = field(default_factory=dict)
    """Seconds without anybody in a role that is expected."""
    starts: int = 0
    """Learners that have started since the last training step."""
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Messages that a role has not acknowledged, by the subject they are on."""

    def of(self, role: str) -> list[Heartbeat]:
        """Who is there in a role."""
        return [beat for beat in self.members if beat.role == role]

    @property
    def is_work_left(self) -> bool:
        """Whether there is something to do for runners and nodes."""
        return self.tasks > 0 or any(beat.state in WORKING["learner"] for beat in self.of("learner"))


@dataclass(frozen=True, slots=True)
class Finding:
    """Who starves, or is missing, and why."""

    role: str
    reason: str


def diagnose(facts: Facts, limits: Limits) -> list[Finding]:
    """What is missing or stands still for longer than it may, one finding a role; none: all is well. Pure."""
    findings = [*_disks(facts)] or [*_missing(facts, limits), *_stalled(facts, limits)]
    return list({finding.role: finding for finding in reversed(findings)}.values())[::-1]


def _disks(facts: Facts) -> Iterator[Finding]:
    for beat in (*facts.of("store"), *facts.of("learner")):
        if beat.status.get("disk"):
            yield Finding(beat.role, f"{beat.role} {beat.id}: {beat.status['disk']}")


def _missing(facts: Facts, limits: Limits) -> Iterator[Finding]:
    for role, seconds in facts.absent.items():
        if seconds >= limits.absent_seconds and (role == "learner" or facts.is_work_left):
            who = "inference node" if role == "inference" else role
            yield Finding(role, f"no {who} has been there for {seconds:.0f} s: it ended without a word, or is cut off")
    if facts.starts >= limits.starts:
        starts = f"the learner has started {facts.starts} times without a training step between"
        yield Finding("learner", f"{starts}: its log says why it ends")


def _stalled(facts: Facts, limits: Limits) -> Iterator[Finding]:
    if facts.since_rollout >= limits.stall_seconds and facts.tasks > 0:
        yield _why_no_rollout(facts)
    learners = [beat for beat in facts.of("learner") if beat.state in WORKING["learner"]]
    if learners and facts.since_step >= limits.stall_seconds:
        learner = learners[0]
        doing = f"no training step for {facts.since_step:.0f} s: the learner is {learner.state}, {_said(learner)}"
        if learner.state == "training":
            doing += "; its process is there and does not get on"
        yield Finding("learner", doing if facts.tasks else f"{doing}; no task is left in the queue")


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
    if full := next((beat.status["waits_for_room"] for beat in runners if beat.status.get("waits_for_room")), ""):
        return _who_lags(f"{still}: {full} is full", facts.lags.get(str(full).split(", ")[0], {}), facts.backlog)
    if not any(str(beat.status.get("busy", "0")).split("/")[0] != "0" for beat in runners):
        agents = ", ".join(sorted({str(beat.status.get("agent")) for beat in runners}))
        return Finding(
            "runner", f"{still}: the runners, of agent {agents}, get none of them; are they another agent's?"
        )
    return Finding("runner", f"{still}: the runners are busy, but no agent comes to an end")


def _who_lags(full: str, lags: Mapping[str, int], backlog: int) -> Finding:
    """The reader with most to do is who is waited for."""
    if not any(lags.values()):
        return Finding("store", f"{full}, {backlog} messages are not written yet")
    role = max(lags, key=lambda name: lags[name])
    counts = ", ".join(f"{name} {count}" for name, count in sorted(lags.items()))
    return Finding(role, f"{full}: the {role} lags (messages not acknowledged: {counts})")


def _said(beat: Heartbeat) -> str:
    return ", ".join(f"{key} {value}" for key, value in beat.status.items())


class Watchdog:
    """Looks every two seconds; `alarm` is what it found, empty while all is well."""

    def __init__(self, bus: Bus, fleet: Fleet, ingester: Ingester, writer: Writer, settings: StoreSettings) -> None:
        self._bus, self._fleet = bus, fleet
        self._limits = Limits(settings.stall_seconds, settings.absent_seconds)
        self._ingester, self._writer = ingester, writer
        self._raised: dict[str, Finding] = {}
        self._work_since = time.monotonic()
        self._roster = Roster(settings.expected, self._work_since)
        self.alarm = ""

    async def run(self) -> None:
        """Watch for ever; what is found is published once, and again when it is over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                tasks = (await self._bus.stream(subjects.TASKS)).messages
                await self._tell(diagnose(self._facts(tasks, await self._lags()), self._limits))
            except (NatsError, BusError) as error:  # without a bus nobody could be told either
                log.warning("nobody could be asked or told: %s", str(error) or type(error).__name__)
            except Exception:
                log.exception("a look failed; the next one is in %g s", LOOK_SECONDS)

    async def _tell(self, findings: list[Finding]) -> None:
        self.alarm = "; ".join(finding.reason for finding in findings)
        found = {finding.role: finding for finding in findings}
        for role in [role for role in self._raised if role not in found]:
            await self._publish(self._raised[role], over=True)
            del self._raised[role]
        for role in [role for role in found if role not in self._raised]:
            await self._publish(found[role], over=False)
            self._raised[role] = found[role]

    async def _lags(self) -> Mapping[str, Mapping[str, int]]:
        """What each reader of a full stream has not acknowledged; asked only where somebody waits for room."""
        if not any(beat.status.get("waits_for_room") for beat in self._fleet.members()):
            return {}
        lags: dict[str, dict[str, int]] = {}
        for reader in ROLLOUT_READERS:
            backlog = await self._bus.backlog(reader)
            lags.setdefault(reader.filter, {})[reader.durable] = backlog.unacknowledged + backlog.undelivered
        return lags

    def _facts(self, tasks: int, lags: Mapping[str, Mapping[str, int]]) -> Facts:
        metrics.tasks_queued.set(tasks)
        now, writer, members = time.monotonic(), self._writer, tuple(self._fleet.members())
        if not tasks:
            self._work_since = now
        self._roster.note(members, now)
        return Facts(
            since_rollout=now - max(writer.last_rollout, self._work_since),
            since_step=now - max(writer.last_step, self._roster.since("learner")),
            tasks=tasks,
            backlog=self._ingester.pending,
            store_problem=writer.problem,
            members=members,
            absent=self._roster.absent(now),
            starts=self._roster.starts("learner", writer.last_step, now),
            lags=lags,
        )

    async def _publish(self, finding: Finding, over: bool) -> None:
        if over:
            log.info("over: %s", finding.reason)
        else:
            log.warning("ALARM: %s", finding.reason)
        metrics.alarm.labels(finding.role).set(not over)
        alarm = Alert(role=finding.role, reason=finding.reason, resolved=over, fired_at_ns=time.time_ns())  # type: ignore[arg-type]
        await self._bus.publish(subjects.ALERT, alarm, msg_id=f"alarm:{alarm.role}:{alarm.fired_at_ns}")
