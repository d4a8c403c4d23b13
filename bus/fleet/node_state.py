"""States of an inference node: what the node says of itself, and what others make of its silence. Pure."""

from typing import Literal

from schemas.fleet import Heartbeat

State = Literal["starting", "stale", "ready", "judging", "draining", "suspect", "dead"]
DEAD = "dead"
NodeEvent = Literal["engine_up", "weights_applied", "withdrawn", "nothing_stands", "engine_lost", "stop"]

SUSPECT_SECONDS = 2.5
"""A node that says each second how it is, and has said nothing for this long, gets no new work."""
DEAD_SECONDS = 10.0
"""After this long it is gone; if it comes back it is as good as new."""

TRANSITIONS: dict[tuple[State, NodeEvent], State] = {
    ("starting", "engine_up"): "stale",
    ("stale", "weights_applied"): "ready",
    ("ready", "weights_applied"): "ready",
    ("stale", "withdrawn"): "judging",
    ("ready", "withdrawn"): "judging",
    ("judging", "weights_applied"): "ready",
    ("judging", "nothing_stands"): "stale",
    ("stale", "engine_lost"): "starting",
    ("judging", "engine_lost"): "starting",
    ("ready", "engine_lost"): "starting",
    ("starting", "stop"): "draining",
    ("stale", "stop"): "draining",
    ("ready", "stop"): "draining",
    ("judging", "stop"): "draining",
}
"""``stale``: the engine runs, but holds no verified version from the bus, so it serves nobody. ``judging``: it
holds one that is not released, so it serves nobody either."""


def next_state(state: State, happening: NodeEvent) -> State:
    """The next state a node is in by its own account; what does not matter in a state leaves it as it is."""
    return TRANSITIONS.get((state, happening), state)


def is_ready(state: str) -> bool:
    """Whether model calls are answered."""
    return state == "ready"


def serves_version(node: Heartbeat, version: int) -> bool:
    """Whether a node holds a version for new calls: the only one it has, or one of several of adapters."""
    held = node.status.get("versions")
    return version in held if isinstance(held, list) else version == node.version


def observed_state(said: str, silence: float) -> str:
    """The state others take a node to be in: what it said last, unless it has been silent for too many seconds."""
    if silence >= DEAD_SECONDS or said == DEAD:
        return DEAD
    return "suspect" if silence >= SUSPECT_SECONDS else said
