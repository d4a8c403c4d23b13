"""Detects child processes that should be alive but are not.

The supervisor runs this check, because a dead role cannot report itself.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nats.errors import Error as NatsError

from lightningbus.alerts.presence import Presence
from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import ABSENT_SECONDS, START_SECONDS, describe
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.run.processes.supervisor import Supervisor
from lightningbus.schemas.fleet import Heartbeat

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class ProcessLiveness:
    """Times at which each expected child was last alive. Pure; time is an argument."""

    def __init__(self, start_seconds: float = START_SECONDS, absent_seconds: float = ABSENT_SECONDS) -> None:
        self._start_seconds, self._absent_seconds = start_seconds, absent_seconds
        self._children: dict[str, Presence] = {}

    def find_absent(self, expected: Mapping[str, int | None], alive: set[int], now: float) -> dict[str, str]:
        """Return the absent children by name, each with an alert. ``now`` is in seconds.

        ``expected`` has the process id of each child, None without a process. ``alive`` has the process ids that send
        heartbeats.
        """
        self._children = {name: self._children.get(name, Presence(now)) for name in expected}
        absent = {}
        for name, pid in expected.items():
            child = self._children[name]
            if pid in alive:
                child.seen_at = now
            is_new = child.seen_at is None
            if child.silence(now) >= (self._start_seconds if is_new else self._absent_seconds):
                doing = "its process has ended" if pid is None else f"its process {pid} runs, but is silent"
                absent[name] = describe("child_not_up" if is_new else "child_gone", name=name, doing=doing)
        return absent


def are_started(pids: Iterable[int | None], members: Sequence[Heartbeat]) -> bool:
    """Return whether all of these processes have reported the end of their start. Pure."""
    return {beat.pid for beat in members if beat.state != "starting"}.issuperset(pids)


class LivenessWatch:
    """Publishes an alert when a child of the supervisor is absent, and again when it is back."""

    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        supervisor: Supervisor,
        on_started: Callable[[], None],
        *,
        owns_bus: bool = False,
    ) -> None:
        """Watch the children of a supervisor; ``on_started`` is called once, when every child has started.

        ``owns_bus``: no other supervisor is on the bus, so that open alerts there are of an earlier start of the run.
        """
        self._fleet, self._supervisor, self._owns_bus = fleet, supervisor, owns_bus
        self._on_started, self._has_started = on_started, False
        self._liveness = ProcessLiveness(START_SECONDS, ABSENT_SECONDS)
        self._absent: dict[str, str] = {}
        self._alerts = AlertPublisher(bus, "absent", timeout=math.inf)

    def describe(self) -> dict[str, Any]:
        """Return the supervisor's heartbeat: the expected children, and alerts for the absent ones."""
        detail: dict[str, Any] = {"expects": ", ".join(self._supervisor.expected())}
        if self._absent:
            detail |= {"alert": "; ".join(self._absent.values()), "alerts": self._absent}
        return {"state": "watching", "status": detail}

    async def run(self) -> None:
        """Watch for ever; alerts of an earlier start are over, once they do not hold any more."""
        if self._owns_bus:
            try:
                await self._alerts.restore()
            except (NatsError, BusError) as error:
                log.warning("alerts of an earlier start cannot be read, and stay open: %s", error)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            roles, pids = self._supervisor.expected(), self._supervisor.pids()
            expected = {name: pids.get(name) for name in roles}
            members = self._fleet.members()
            alive = {beat.pid for beat in members}
            if not self._has_started and expected and are_started(expected.values(), members):
                self._has_started = True
                self._on_started()
            self._absent = self._liveness.find_absent(expected, alive, time.monotonic())
            await self._alerts.update({name: Reason(roles[name], self._absent[name]) for name in self._absent})
