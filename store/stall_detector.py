"""Detects stalls: no rollout or training step finishes, or a role is missing. Publishes an alert with the reason."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import DONE, is_ready
from lightningbus.bus.fleet.readiness import READY_STATES
from lightningbus.bus.streams.specs import rollout_consumers
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Alert, Heartbeat
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.role_liveness import RoleKey, RoleLiveness
from lightningbus.store.settings import StoreSettings

log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 2.0
MIN_FAILED_ATTEMPTS = 16
"""In a row: fewer may be chance."""


@dataclass(frozen=True, slots=True)
class StallThresholds:
    """Seconds before an alert, and starts of a learner without a training step between them."""

    stall_timeout_seconds: float
    absent_seconds: float
    num_starts: int = 4


@dataclass(frozen=True, slots=True)
class SystemSnapshot:
    """The state of the system at one moment, as the store sees it."""

    seconds_since_rollout: float
    seconds_since_step: Mapping[str, float]
    """By the model of a learner."""
    num_tasks: int
    """Tasks in the queue, with those in progress."""
    num_pending: int
    """Messages that the store has not written yet."""
    store_problem: str
    members: tuple[Heartbeat, ...]
    absent: Mapping[RoleKey, float] = field(default_factory=dict)
    """Seconds without a process, by missing role."""
    num_starts: Mapping[str, int] = field(default_factory=dict)
    """Learners that have started since the last training step of their model, by model."""
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Messages that a role has not acknowledged, by the subject they are on."""
    num_failed_attempts: int = 0
    """Attempts of training rollouts in a row that did not end well."""
    last_failure: str = ""
    """Outcome and error of the last of them."""
    training_bias: str = ""
    """See `training_bias.find_bias`."""

    def name_of(self, role: str, model: str) -> str:
        """A role, with the model where there are several of it."""
        known = {beat.model for beat in self.members_in(role)} | {key.model for key in self.absent if key.role == role}
        known |= set(self.seconds_since_step) if role == "learner" else set()
        what = "inference node" if role == "inference" else role
        return f"{what} of {model}" if model and len(known) > 1 else what

    def members_in(self, role: str) -> list[Heartbeat]:
        """Living processes of a role."""
        return [beat for beat in self.members if beat.role == role]

    @property
    def is_work_left(self) -> bool:
        """Whether there is something to do for runners and nodes."""
        return self.num_tasks > 0 or any(beat.state in READY_STATES["learner"] for beat in self.members_in("learner"))


@dataclass(frozen=True, slots=True)
class Stall:
    """A role that is stalled or missing, and why; ``model``: of which model, where there may be several."""

    role: str
    reason: str
    model: str = ""

    @property
    def key(self) -> RoleKey:
        """What it is about: a role has at most one stall for each model."""
        return RoleKey(self.role, self.model)


def diagnose(snapshot: SystemSnapshot, limits: StallThresholds) -> list[Stall]:
    """Roles that are missing or stalled for too long, at most one stall a role and model. Pure."""
    stalls = [*_find_full_disks(snapshot)] or [
        *_find_missing_roles(snapshot, limits),
        *_find_stalled_roles(snapshot, limits),
        *([Stall("learner", snapshot.training_bias)] if snapshot.training_bias else []),
    ]
    return list({stall.key: stall for stall in reversed(stalls)}.values())[::-1]


def _find_full_disks(snapshot: SystemSnapshot) -> Iterator[Stall]:
    for beat in (*snapshot.members_in("store"), *snapshot.members_in("learner")):
        if beat.status.get("disk") and beat.state != DONE:
            yield Stall(beat.role, f"{beat.role} {beat.id}: {beat.status['disk']}")


def _find_missing_roles(snapshot: SystemSnapshot, limits: StallThresholds) -> Iterator[Stall]:
    for key, seconds in snapshot.absent.items():
        if seconds >= limits.absent_seconds and (key.role == "learner" or snapshot.is_work_left):
            what = f"no {snapshot.name_of(key.role, key.model)} has been there for {seconds:.0f} s"
            yield Stall(key.role, f"{what}: it ended without a word, or is cut off", key.model)
    for model, num_starts in snapshot.num_starts.items():
        if num_starts >= limits.num_starts:
            who = snapshot.name_of("learner", model)
            restarts = f"the {who} has started {num_starts} times without a training step between"
            yield Stall("learner", f"{restarts}: its log says why it ends", model)


def _find_stalled_roles(snapshot: SystemSnapshot, limits: StallThresholds) -> Iterator[Stall]:
    if snapshot.seconds_since_rollout >= limits.stall_timeout_seconds and snapshot.num_tasks > 0:
        yield _explain_missing_rollouts(snapshot)
    learners = [beat for beat in snapshot.members_in("learner") if beat.state in READY_STATES["learner"]]
    for model, learner in {beat.model: beat for beat in reversed(learners)}.items():
        seconds = snapshot.seconds_since_step.get(model, 0.0)
        if seconds < limits.stall_timeout_seconds:
            continue
        state = f"{learner.state}, {_format_status(learner)}"
        doing = f"no training step for {seconds:.0f} s: the {snapshot.name_of('learner', model)} is {state}"
        if learner.state == "training":
            doing += "; its process is there and does not get on"
        if snapshot.num_failed_attempts >= MIN_FAILED_ATTEMPTS:
            count = f"{snapshot.num_failed_attempts:,}"
            doing += f"; the last {count} training attempts failed, the newest with {snapshot.last_failure}"
        yield Stall("learner", doing if snapshot.num_tasks else f"{doing}; no task is left in the queue", model)


def _explain_missing_rollouts(snapshot: SystemSnapshot) -> Stall:
    symptom = f"no rollout has finished for {snapshot.seconds_since_rollout:.0f} s and {snapshot.num_tasks} tasks wait"
    if snapshot.store_problem:
        return Stall("store", f"{symptom}: the store cannot write: {snapshot.store_problem}")
    runners, nodes = snapshot.members_in("runner"), snapshot.members_in("inference")
    if not [beat for beat in runners if beat.state == "running"]:
        return Stall("runner", f"{symptom}: no runner is there to take them")
    if not [beat for beat in nodes if is_ready(beat.state)]:
        states = ", ".join(f"{beat.id} is {beat.state}" for beat in nodes) or "there is none"
        return Stall("runner", f"{symptom}: no inference node is ready ({states})")
    if full := next((beat.status["waits_for_room"] for beat in runners if beat.status.get("waits_for_room")), ""):
        return _explain_lag(
            f"{symptom}: {full} is full", snapshot.lags.get(str(full).split(", ")[0], {}), snapshot.num_pending
        )
    if not any(str(beat.status.get("busy", "0")).split("/")[0] != "0" for beat in runners):
        agents = ", ".join(sorted({str(beat.status.get("agent")) for beat in runners}))
        return Stall(
            "runner", f"{symptom}: the runners, of agent {agents}, get none of them; are they another agent's?"
        )
    return Stall("runner", f"{symptom}: the runners are busy, but no agent comes to an end")


def _explain_lag(full: str, lags: Mapping[str, int], num_pending: int) -> Stall:
    """Blame the reader with the largest backlog."""
    if not any(lags.values()):
        return Stall("store", f"{full}, {num_pending} messages are not written yet")
    slowest = max(lags, key=lambda durable: lags[durable])
    counts = ", ".join(f"{durable} {count}" for durable, count in sorted(lags.items()))
    role = "learner" if subjects.is_learner_durable(slowest) else slowest
    model = subjects.model_of_durable(slowest) if subjects.is_learner_durable(slowest) else ""
    return Stall(role, f"{full}: {slowest} lags (messages not acknowledged: {counts})", model)


def _format_status(beat: Heartbeat) -> str:
    """What a role says of itself, but for an alert of its own, which is shown beside this one."""
    return ", ".join(f"{key} {value}" for key, value in beat.status.items() if key != "alert")


class StallDetector:
    """Checks every two seconds; `alert` is the reasons of all stalls, empty without one."""

    def __init__(self, bus: Bus, fleet: Fleet, ingester: Ingester, writer: Writer, settings: StoreSettings) -> None:
        self._bus, self._fleet = bus, fleet
        self._limits = StallThresholds(settings.stall_timeout_seconds, settings.absent_seconds)
        self._ingester, self._writer = ingester, writer
        self._firing: dict[RoleKey, Stall] = {}
        self._work_since = time.monotonic()
        self._liveness = RoleLiveness(settings.expected, self._work_since)
        self.alert = ""
        self.training_bias = ""
        """As of the last look; see `training_bias.find_bias`."""

    async def run(self) -> None:
        """Check for ever; an alert is published when a stall begins and when it ends."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            try:
                num_tasks = (await self._bus.stream_state(subjects.TASKS)).num_messages
                await self._update_alerts(
                    diagnose(self._take_snapshot(num_tasks, await self._consumer_lags()), self._limits)
                )
            except (NatsError, BusError) as error:  # without the bus no alert can be published
                log.warning("the bus cannot be reached for a stall check: %s", str(error) or type(error).__name__)
            except Exception:
                log.exception("a stall check failed; the next one is in %g s", CHECK_INTERVAL_SECONDS)

    async def _update_alerts(self, stalls: list[Stall]) -> None:
        self.alert = "; ".join(stall.reason for stall in stalls)
        stall_by_key = {stall.key: stall for stall in stalls}
        for key in [key for key in self._firing if key not in stall_by_key]:
            stall = self._firing.pop(key)
            await self._publish(stall, over=True)
        for key in [key for key in stall_by_key if key not in self._firing]:
            await self._publish(stall_by_key[key], over=False)
            self._firing[key] = stall_by_key[key]

    async def _consumer_lags(self) -> Mapping[str, Mapping[str, int]]:
        """Unacknowledged messages of each reader of the rollout streams, read only while a publisher is blocked."""
        if not any(beat.status.get("waits_for_room") for beat in self._fleet.members()):
            return {}
        lags: dict[str, dict[str, int]] = {}
        names = await self._bus.consumer_names(subjects.TRAIN_ROLLOUTS)
        for reader in rollout_consumers(map(subjects.model_of_durable, filter(subjects.is_learner_durable, names))):
            backlog = await self._bus.backlog(reader)
            lags.setdefault(reader.filter_subject, {})[reader.durable] = backlog.num_ack_pending + backlog.num_pending
        return lags

    def _take_snapshot(self, num_tasks: int, lags: Mapping[str, Mapping[str, int]]) -> SystemSnapshot:
        metrics.queue_tasks.set(num_tasks)
        now, writer, members = time.monotonic(), self._writer, tuple(self._fleet.members())
        if not num_tasks:
            self._work_since = now
        self._liveness.observe(members, now)
        models = self._liveness.models_of("learner")
        last_step_at = {model: writer.last_step_at.get(model, writer.started_at) for model in models}
        return SystemSnapshot(
            seconds_since_rollout=now - max(writer.last_rollout_at, self._work_since),
            seconds_since_step={
                model: now - max(last_step_at[model], self._liveness.since(RoleKey("learner", model)))
                for model in models
            },
            num_tasks=num_tasks,
            num_pending=self._ingester.pending,
            store_problem=writer.problem,
            members=members,
            absent=self._liveness.absent(now),
            num_starts={
                model: self._liveness.count_starts(RoleKey("learner", model), last_step_at[model], now)
                for model in models
            },
            lags=lags,
            num_failed_attempts=writer.num_failed_attempts,
            last_failure=writer.last_failure,
            training_bias=self.training_bias,
        )

    async def _publish(self, stall: Stall, over: bool) -> None:
        if over:
            log.info("over: %s", stall.reason)
        else:
            log.warning("ALERT: %s", stall.reason)
        metrics.alert_firing.labels(stall.role).set(not over or any(key.role == stall.role for key in self._firing))
        alert = Alert(role=stall.role, reason=stall.reason, resolved=over, fired_at_ns=time.time_ns())  # type: ignore[arg-type]
        await self._bus.publish(subjects.ALERT, alert, msg_id=f"alert:{alert.role}:{stall.model}:{alert.fired_at_ns}")
