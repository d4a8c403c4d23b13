"""Detects stalls (no rollout or training step finishes) and missing roles, and publishes an alert with the reason."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nats.errors import Error as NatsError

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import MIN_FAILED_ATTEMPTS, NUM_STARTS, describe
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import DONE, is_ready
from lightningbus.bus.fleet.readiness import READY_STATES
from lightningbus.bus.streams.specs import GRADERS, rollout_consumers
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.ingest.ingester import Ingester
from lightningbus.store.ingest.writer import Writer
from lightningbus.store.role_liveness import RoleKey, RoleLiveness
from lightningbus.store.settings import StoreSettings
from lightningbus.store.step_pace import StepPace

log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StallThresholds:
    """Thresholds of alerts: seconds, and starts of a learner without a training step between them."""

    stall_timeout_seconds: float
    absent_seconds: float
    num_starts: int = NUM_STARTS


@dataclass(frozen=True, slots=True)
class SystemSnapshot:
    """The state of the system at one moment, as the store sees it."""

    seconds_since_rollout: float
    seconds_since_step: Mapping[str, float]
    """Seconds since the last training step, by the learner's model."""
    num_tasks: int
    """Tasks in the queue, with those in progress."""
    num_pending: int
    """Messages that the store has not written yet."""
    store_problem: str
    members: tuple[Heartbeat, ...]
    step_limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds that a step may take where that is longer than the timeout of stalls, by model."""
    absent: Mapping[RoleKey, float] = field(default_factory=dict)
    """Seconds without a process, by missing role."""
    num_starts: Mapping[str, int] = field(default_factory=dict)
    """Learners that have started since the last training step of their model, by model."""
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Messages that a role has not acknowledged, by the subject they are on."""
    num_ungraded: int = 0
    """Attempts that wait for a grade, with those that a grader works on."""
    num_failed_attempts: int = 0
    """Attempts of training rollouts in a row that did not end well."""
    last_failure: str = ""
    """Outcome and error of the last failed attempt."""
    training_bias: str = ""
    """Alert about training bias, see `training_bias.find_bias`; empty: none."""

    def name_of(self, role: str, model: str) -> str:
        """Return a role's name, with the model where several models have such a role."""
        known = {beat.model for beat in self.members_in(role)} | {key.model for key in self.absent if key.role == role}
        known |= set(self.seconds_since_step) if role == "learner" else set()
        what = "inference node" if role == "inference" else role
        return f"{what} of {model}" if model and len(known) > 1 else what

    def members_in(self, role: str) -> list[Heartbeat]:
        """Return the heartbeats of a role's living processes."""
        return [beat for beat in self.members if beat.role == role]

    @property
    def is_rollout_left(self) -> bool:
        """Whether a task or an attempt is on the bus that is to become the end of a rollout."""
        return self.num_tasks > 0 or self.num_ungraded > 0

    @property
    def is_work_left(self) -> bool:
        """Whether there is something to do for runners, nodes and graders."""
        return self.is_rollout_left or any(beat.state in READY_STATES["learner"] for beat in self.members_in("learner"))


@dataclass(frozen=True, slots=True)
class Stall:
    """A stalled or missing role with the reason; ``model`` is empty unless there may be several."""

    role: str
    reason: str
    rule: str
    """Name of the alert rule, or of the check that finds by several rules."""
    model: str = ""

    @property
    def key(self) -> RoleKey:
        """Role and model of the stall; a role has at most one stall for each model."""
        return RoleKey(self.role, self.model)

    @property
    def cause(self) -> str:
        """Role, model and rule: the same as long as the stall has the same cause, whatever its numbers."""
        return f"{self.role}:{self.model}:{self.rule}"

    @classmethod
    def by_rule(cls, rule: str, role: str, model: str, /, **values: object) -> "Stall":
        """Build a stall with the sentence of an alert rule."""
        return cls(role, describe(rule, **values), rule, model)


def diagnose(snapshot: SystemSnapshot, limits: StallThresholds) -> list[Stall]:
    """Yield the roles that are missing or stalled for too long, at most one stall for each role and model. Pure."""
    stalls = [*_find_full_disks(snapshot)] or [
        *_find_missing_roles(snapshot, limits),
        *_find_stalled_roles(snapshot, limits),
        *([Stall("learner", snapshot.training_bias, rule="training_bias")] if snapshot.training_bias else []),
    ]
    return list({stall.key: stall for stall in reversed(stalls)}.values())[::-1]


def _find_full_disks(snapshot: SystemSnapshot) -> Iterator[Stall]:
    for beat in (*snapshot.members_in("store"), *snapshot.members_in("learner")):
        if beat.status.get("disk") and beat.state != DONE:
            yield Stall.by_rule("disk_full", beat.role, "", role=beat.role, id=beat.id, problem=beat.status["disk"])


def _find_missing_roles(snapshot: SystemSnapshot, limits: StallThresholds) -> Iterator[Stall]:
    for key, seconds in snapshot.absent.items():
        if seconds >= limits.absent_seconds and (key.role == "learner" or snapshot.is_work_left):
            who = snapshot.name_of(key.role, key.model)
            yield Stall.by_rule("role_gone", key.role, key.model, who=who, seconds=seconds)
    for model, num_starts in snapshot.num_starts.items():
        if num_starts >= limits.num_starts:
            who = snapshot.name_of("learner", model)
            yield Stall.by_rule("restart_loop", "learner", model, who=who, num_starts=num_starts)


def _find_stalled_roles(snapshot: SystemSnapshot, limits: StallThresholds) -> Iterator[Stall]:
    if snapshot.seconds_since_rollout >= limits.stall_timeout_seconds and snapshot.is_rollout_left:
        yield _explain_missing_rollouts(snapshot)
    learners = [beat for beat in snapshot.members_in("learner") if beat.state in READY_STATES["learner"]]
    for model, learner in {beat.model: beat for beat in reversed(learners)}.items():
        seconds = snapshot.seconds_since_step.get(model, 0.0)
        if seconds < max(limits.stall_timeout_seconds, snapshot.step_limits.get(model, 0.0)):
            continue
        details = "; its process is there and does not get on" if learner.state == "training" else ""
        if snapshot.num_failed_attempts >= MIN_FAILED_ATTEMPTS:
            count = f"{snapshot.num_failed_attempts:,}"
            details += f"; the last {count} training attempts failed, the newest with {snapshot.last_failure}"
        details += "" if snapshot.num_tasks else "; no task is left in the queue"
        who, state = snapshot.name_of("learner", model), f"{learner.state}, {_format_status(learner)}"
        yield Stall.by_rule("no_step", "learner", model, seconds=seconds, who=who, state=state, details=details)


def _explain_missing_rollouts(snapshot: SystemSnapshot) -> Stall:
    def stall(role: str, rule: str, model: str = "", **values: object) -> Stall:
        waited = {
            "seconds": snapshot.seconds_since_rollout,
            "num_tasks": snapshot.num_tasks,
            "num_ungraded": snapshot.num_ungraded,
        }
        return Stall.by_rule(rule, role, model, **waited, **values)

    if snapshot.store_problem:
        return stall("store", "store_cannot_write", problem=snapshot.store_problem)
    runners, nodes, graders = (snapshot.members_in(role) for role in ("runner", "inference", "grader"))
    if snapshot.num_ungraded and not [beat for beat in graders if beat.state in READY_STATES["grader"]]:
        return stall("grader", "no_grader")
    blocked = (str(beat.status.get("waits_for_room") or "") for beat in (*graders, *runners))
    full = next(filter(None, blocked), "")
    if not snapshot.num_tasks and not full:
        return stall("grader", "graders_hang")
    if snapshot.num_tasks and not [beat for beat in runners if beat.state == "running"]:
        return stall("runner", "no_runner", states=_list_states(runners))
    if snapshot.num_tasks and not [beat for beat in nodes if is_ready(beat.state)]:
        return stall("runner", "no_node", states=_list_states(nodes))
    if full:
        lags = snapshot.lags.get(full.split(", ")[0], {})
        if not any(lags.values()):
            return stall("store", "store_behind", stream=full, num_pending=snapshot.num_pending)
        slowest = max(lags, key=lambda durable: lags[durable])
        counts = ", ".join(f"{durable} {count}" for durable, count in sorted(lags.items()))
        is_learner = subjects.is_learner_durable(slowest)
        role, model = ("learner", subjects.model_of_durable(slowest)) if is_learner else (slowest, "")
        return stall(role, "stream_full", model, stream=full, slowest=slowest, counts=counts)
    if not any(str(beat.status.get("busy", "0")).split("/")[0] != "0" for beat in runners):
        agents = ", ".join(sorted({str(beat.status.get("agent")) for beat in runners}))
        return stall("runner", "other_agent", agents=agents)
    return stall("runner", "agents_hang")


def _list_states(beats: Sequence[Heartbeat]) -> str:
    return ", ".join(f"{beat.id} is {beat.state}" for beat in beats) or "there is none"


def _format_status(beat: Heartbeat) -> str:
    """Format a role's status, without its own alert, which is shown beside this one."""
    return ", ".join(f"{key} {value}" for key, value in beat.status.items() if key not in ("alert", "alerts"))


class StallDetector:
    """Checks every two seconds; `alerts` has the reasons of all stalls by cause, and `alert` joins them."""

    def __init__(self, bus: Bus, fleet: Fleet, ingester: Ingester, writer: Writer, settings: StoreSettings) -> None:
        self._bus, self._fleet = bus, fleet
        self._limits = StallThresholds(settings.stall_timeout_seconds, settings.absent_seconds)
        self._ingester, self._writer = ingester, writer
        self._alerts = AlertPublisher(bus, "stall")
        self._firing_roles: set[str] = set()
        self._work_since = time.monotonic()
        self._pace = StepPace()
        self._liveness = RoleLiveness(settings.expected, self._work_since)
        self.alerts: dict[str, str] = {}
        self.training_bias = ""
        """Alert found by the last check, see `training_bias.find_bias`; empty: none."""

    @property
    def alert(self) -> str:
        """The reasons of all stalls in one sentence; empty without one."""
        return "; ".join(self.alerts.values())

    async def run(self) -> None:
        """Check for ever; an alert is published when a stall begins and when it ends.

        Those that the store of an earlier start left end too, once they do not hold any more.
        """
        try:
            await self._alerts.restore()
        except (NatsError, BusError) as error:
            log.warning("alerts of an earlier start cannot be read, and stay open: %s", error)
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            try:
                num_tasks = (await self._bus.stream_state(subjects.TASKS)).num_messages
                num_ungraded = (await self._bus.backlog(GRADERS)).num_unacknowledged
                snapshot = self._take_snapshot(num_tasks, num_ungraded, await self._consumer_lags())
                await self._update_alerts(diagnose(snapshot, self._limits))
            except (NatsError, BusError) as error:  # without the bus no alert can be published
                log.warning("the bus cannot be reached for a stall check: %s", str(error) or type(error).__name__)
            except Exception:
                log.exception("a stall check failed; the next one is in %g s", CHECK_INTERVAL_SECONDS)

    async def _update_alerts(self, stalls: list[Stall]) -> None:
        self.alerts = {stall.cause: stall.reason for stall in stalls}
        roles = {stall.role for stall in stalls}
        for role in roles | self._firing_roles:
            metrics.alert_firing.labels(role).set(role in roles)
        self._firing_roles = roles
        await self._alerts.update({f"{stall.role}:{stall.model}": Reason(stall.role, stall.reason) for stall in stalls})

    async def _consumer_lags(self) -> Mapping[str, Mapping[str, int]]:
        """Return the unacknowledged messages of each reader of the rollout streams; empty unless a publisher waits."""
        if not any(beat.status.get("waits_for_room") for beat in self._fleet.members()):
            return {}
        lags: dict[str, dict[str, int]] = {}
        names = await self._bus.consumer_names(subjects.TRAIN_ROLLOUTS)
        for reader in rollout_consumers(map(subjects.model_of_durable, filter(subjects.is_learner_durable, names))):
            num_messages = (await self._bus.backlog(reader)).num_unacknowledged
            lags.setdefault(reader.filter_subject, {})[reader.durable] = num_messages
        return lags

    def _take_snapshot(
        self, num_tasks: int, num_ungraded: int, lags: Mapping[str, Mapping[str, int]]
    ) -> SystemSnapshot:
        metrics.queue_tasks.set(num_tasks)
        now, writer, members = time.monotonic(), self._writer, tuple(self._fleet.members())
        if not num_tasks and not num_ungraded:
            self._work_since = now
        self._liveness.observe(members, now)
        models = self._liveness.models_of("learner")
        self._pace.observe(writer.last_step_at)
        last_step_at = {model: writer.last_step_at.get(model, writer.started_at) for model in models}
        return SystemSnapshot(
            seconds_since_rollout=now - max(writer.last_rollout_at, self._work_since),
            seconds_since_step={
                model: now - max(last_step_at[model], self._liveness.since(RoleKey("learner", model)))
                for model in models
            },
            step_limits={model: self._pace.find_limit(model, self._limits.stall_timeout_seconds) for model in models},
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
            num_ungraded=num_ungraded,
            num_failed_attempts=writer.num_failed_attempts,
            last_failure=writer.last_failure,
            training_bias=self.training_bias,
        )
