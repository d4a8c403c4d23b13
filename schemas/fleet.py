"""Events about processes: heartbeats and alerts."""

from typing import Any, Literal

from msgspec import field

from schemas.base import Event, NonNegativeInt


class Heartbeat(Event, frozen=True, kw_only=True):
    """What a process is doing, sent every second and forgotten."""

    role: Literal["store", "learner", "inference", "runner", "publisher", "supervisor"]
    id: str
    run_id: str = ""
    state: str
    """Inference nodes: a state of `bus.fleet.node_state`; others: what they do now."""
    pid: NonNegativeInt = 0
    address: str = ""
    """Where an inference node can be reached: ``http://host:port``."""
    model: str = ""
    version: NonNegativeInt | None = None
    status: dict[str, Any] = field(default_factory=dict)
    sent_at_ns: NonNegativeInt


class Alert(Event, frozen=True, kw_only=True):
    """Something stands still, or goes on again."""

    role: Literal["store", "learner", "inference", "runner", "publisher"]
    """Who starves, or what is missing."""
    reason: str
    resolved: bool = False
    """The alarm before it is no longer true."""
    fired_at_ns: NonNegativeInt
