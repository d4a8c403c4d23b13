"""Which roles are missing, and whether one restarts in a loop. Pure; time is passed in."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bus.fleet.node_state import DONE
from schemas.fleet import Heartbeat

LEAVING_STATES = (DONE, "draining", "stopping")
"""States of a process that stops on purpose."""
RESET_AFTER_SECONDS = 120.0
"""A role that returns after this long counts as new."""
RESTART_WINDOW_SECONDS = 600.0
"""Starts further apart are not a restart loop."""


@dataclass(slots=True)
class _Role:
    since: float
    seen: float
    has_left: bool = False
    is_done: bool = False
    processes: set[tuple[str, int]] = field(default_factory=set)
    starts: deque[float] = field(default_factory=deque)


class RoleLiveness:
    """Every role that is expected, or was seen and did not announce that it stops."""

    def __init__(self, expected: Iterable[str], now: float) -> None:
        self._roles = {role: _Role(now, now) for role in expected}
        self._expected = frozenset(expected)

    def observe(self, members: Iterable[Heartbeat], now: float) -> None:
        """Record the processes that are alive now."""
        alive: dict[str, list[Heartbeat]] = {}
        for heartbeat in members:
            alive.setdefault(heartbeat.role, []).append(heartbeat)
        for name, heartbeats in alive.items():
            role = self._roles.setdefault(name, _Role(now, now))
            if now - role.seen > RESET_AFTER_SECONDS:
                role.since = now
            processes = {(heartbeat.id, heartbeat.pid) for heartbeat in heartbeats}
            role.starts.extend([now] * len(processes - role.processes))
            role.processes, role.seen = processes, now
            role.has_left = all(heartbeat.state in LEAVING_STATES for heartbeat in heartbeats)
            role.is_done = all(heartbeat.state == DONE for heartbeat in heartbeats)

    def absent(self, now: float) -> Mapping[str, float]:
        """Seconds without a process, by missing role."""
        return {
            name: now - role.seen
            for name, role in self._roles.items()
            if role.seen < now and not role.is_done and not (role.has_left and name not in self._expected)
        }

    def since(self, name: str) -> float:
        """Since when a role is present, without a long absence; infinity if it was never seen."""
        return self._roles[name].since if name in self._roles else float("inf")

    def count_starts(self, name: str, after: float, now: float) -> int:
        """How many processes of a role started ``after`` a time, within the restart window."""
        if name not in self._roles:
            return 0
        return sum(at > max(after, now - RESTART_WINDOW_SECONDS) for at in self._roles[name].starts)
