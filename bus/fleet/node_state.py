"""States of an inference node: what the node says of itself, and what others make of its silence. Pure."""

from typing import Literal

from schemas.fleet import Heartbeat

State = Literal["starting", "awaiting_weights", "ready", "canary", "draining", "suspect", "dead"]
DEAD = "dead"
NodeEvent = Literal["engine_up", "weights_applied", "canary_started", "no_servable_version", "engine_exited", "stop"]

SUSPECT_SECONDS = 2.5
"""A node that says each second how it is, and has said nothing for this long, gets no new work."""
DEAD_SECONDS = 10.0
"""After this long it is gone; if it comes back it is as good as new."""

TRANSITIONS: dict[tuple[State, NodeEvent], State] = {
    ("starting", "engine_up"): "awaiting_weights",
    ("awaiting_weights", "weights_applied"): "ready",
    ("ready", "weights_applied"): "ready",
    ("awaiting_weights", "canary_started"): "canary",
    ("ready", "canary_started"): "canary",
    ("canary", "weights_applied"): "ready",
    ("canary", "no_servable_version"): "awaiting_weights",
    ("awaiting_weights", "engine_exited"): "starting",
    ("canary", "engine_exited"): "starting",
    ("ready", "engine_exited"): "starting",
    ("starting", "stop"): "draining",
    ("awaiting_weights", "stop"): "draining",
    ("ready", "stop"): "draining",
    ("canary", "stop"): "draining",
}
"""``awaiting_weights``: the engine runs, but holds no verified version from the bus, so it serves nobody.
``canary``: it holds a version that is not released yet, so it serves nobody either."""


def next_state(state: State, event: NodeEvent) -> State:
    """The next state a node is in by its own account; what does not matter in a state leaves it as it is."""
    return TRANSITIONS.get((state, event), state)


def is_ready(state: str) -> bool:
    """Whether model calls are answered."""
    return state == "ready"


def serves_version(node: Heartbeat, version: int) -> bool:
    """Whether a node holds a version for new calls: the only one it has, or one of several of adapters."""
    versions = node.status.get("versions")
    return version in versions if isinstance(versions, list) else version == node.version


def observed_state(reported: str, silence: float) -> str:
    """The state others take a node to be in: what it said last, unless it has been silent for too many seconds."""
    if silence >= DEAD_SECONDS or reported == DEAD:
        return DEAD
    return "suspect" if silence >= SUSPECT_SECONDS else reported
