"""Detects roles that are missing or restart in a loop. Pure; time is an argument.

Each learner, and the nodes of each model, count as a role of their own: another model's do not replace them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lightningbus.alerts.presence import Presence
from lightningbus.alerts.table import RESTART_WINDOW_SECONDS
from lightningbus.bus.fleet.node_state import DONE, LEAVING_STATES
from lightningbus.schemas.fleet import Heartbeat

ROLES_OF_MODELS = ("learner", "inference")
"""Roles whose processes are each of one model."""
RESET_AFTER_SECONDS = 120.0
"""A role that returns after this long counts as new."""


@dataclass(frozen=True, order=True, slots=True)
class RoleKey:
    """A role; ``model`` is the one that its processes train or serve, empty if there is none or it is unknown."""

    role: str
    model: str = ""


@dataclass(slots=True)
class _Role(Presence):
    has_left: bool = False
    is_done: bool = False
    processes: set[tuple[str, int]] = field(default_factory=set)
    starts: deque[float] = field(default_factory=deque)


class RoleLiveness:
    """Tracks every role that is expected, or was seen and did not announce its stop."""

    def __init__(self, expected: Iterable[str], now: float) -> None:
        self._roles = {RoleKey(role): _Role(now) for role in expected}
        self._expected = frozenset(expected)

    def observe(self, members: Iterable[Heartbeat], now: float) -> None:
        """Record the processes that are alive now."""
        alive: dict[RoleKey, list[Heartbeat]] = {}
        for heartbeat in members:
            model = heartbeat.model if heartbeat.role in ROLES_OF_MODELS else ""
            alive.setdefault(RoleKey(heartbeat.role, model), []).append(heartbeat)
        for key, heartbeats in alive.items():
            if key.model:  # what was expected of the role is expected of its models, now that one is known
                self._roles.pop(RoleKey(key.role), None)
            role = self._roles.setdefault(key, _Role(now))
            processes = {(heartbeat.id, heartbeat.pid) for heartbeat in heartbeats}
            is_back = role.has_left and not processes <= role.processes
            if role.silence(now) > RESET_AFTER_SECONDS or is_back:
                role.since = now
            role.starts.extend([now] * len(processes - role.processes))
            role.processes, role.seen_at = processes, now
            role.has_left = all(heartbeat.state in LEAVING_STATES for heartbeat in heartbeats)
            role.is_done = all(heartbeat.state == DONE for heartbeat in heartbeats)

    def absent(self, now: float) -> Mapping[RoleKey, float]:
        """Return the seconds without a process, by missing role."""
        return {
            key: role.silence(now)
            for key, role in self._roles.items()
            if role.silence(now) > 0 and not role.is_done and not (role.has_left and key.role not in self._expected)
        }

    def models_of(self, role: str) -> list[str]:
        """Return the models whose processes of a role have been seen, or the empty name where none has a model."""
        return sorted(key.model for key in self._roles if key.role == role)

    def since(self, key: RoleKey) -> float:
        """Return the time since which a role is present without a long absence or a stop; infinity if never seen."""
        return self._roles[key].since if key in self._roles else float("inf")

    def count_starts(self, key: RoleKey, after: float, now: float) -> int:
        """Count the processes of a role that started ``after`` a time, within the restart window."""
        if key not in self._roles:
            return 0
        return sum(at > max(after, now - RESTART_WINDOW_SECONDS) for at in self._roles[key].starts)
