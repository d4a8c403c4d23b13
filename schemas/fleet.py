"""Events about processes: heartbeats and alerts."""

from typing import Any, Literal

from msgspec import field

from lightningbus.schemas.base import Event, NonNegativeInt

Role = Literal["store", "learner", "inference", "runner", "grader", "auditor", "supervisor"]
PARSE_PATH = "/v1/chat/completions/parse"
"""Path of an inference node that parses a whole answer, if its heartbeat names parsers."""


class Heartbeat(Event, frozen=True, kw_only=True):
    """The state of a process, sent every second and not stored."""

    role: Role
    id: str
    run_id: str = ""
    state: str
    """Inference nodes: a state of `lightningbus.bus.fleet.node_state`; others: a short description."""
    pid: NonNegativeInt = 0
    address: str = ""
    """Address of an inference node: ``http://host:port``."""
    model: str = ""
    version: NonNegativeInt | None = None
    status: dict[str, Any] = field(default_factory=dict)
    sent_at_ns: NonNegativeInt


class Alert(Event, frozen=True, kw_only=True):
    """A role is stalled or missing, or has recovered."""

    role: Role
    """The role that is stalled or missing."""
    reason: str
    resolved: bool = False
    """The alert with this reason no longer applies."""
    fired_at_ns: NonNegativeInt
