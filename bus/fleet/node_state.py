"""States of an inference node: what it reports, and what others infer from its silence. Pure."""

from typing import Literal

from lightningbus.schemas.fleet import Heartbeat

State = Literal["starting", "awaiting_weights", "ready", "canary", "draining", "suspect", "dead"]
DEAD = "dead"
DONE = "done"
"""The last state of a process that has finished its work, such as a learner after its last step."""
LEAVING_STATES = (DONE, "draining", "stopping")
"""States of a process that stops on purpose."""
NodeEvent = Literal[
    "engine_up", "weights_applied", "canary_started", "no_servable_version", "engine_exited", "audit_failed", "stop"
]

SUSPECT_SECONDS = 2.5
"""A node without a heartbeat for this long gets no new work."""
DEAD_SECONDS = 10.0
"""After this long it is dead. If it comes back it counts as new."""

TRANSITIONS: dict[tuple[State, NodeEvent], State] = {
    ("starting", "engine_up"): "awaiting_weights",
    ("starting", "weights_applied"): "ready",
    ("awaiting_weights", "weights_applied"): "ready",
    ("ready", "weights_applied"): "ready",
    ("awaiting_weights", "canary_started"): "canary",
    ("ready", "canary_started"): "canary",
    ("canary", "weights_applied"): "ready",
    ("canary", "no_servable_version"): "awaiting_weights",
    ("awaiting_weights", "engine_exited"): "starting",
    ("canary", "engine_exited"): "starting",
    ("ready", "engine_exited"): "starting",
    ("awaiting_weights", "audit_failed"): "suspect",
    ("canary", "audit_failed"): "suspect",
    ("ready", "audit_failed"): "suspect",
    ("suspect", "engine_exited"): "starting",
    ("suspect", "stop"): "draining",
    ("starting", "stop"): "draining",
    ("awaiting_weights", "stop"): "draining",
    ("ready", "stop"): "draining",
    ("canary", "stop"): "draining",
}
"""Next state by current state and event.

``awaiting_weights``: the engine runs, but holds no verified version from the bus, so it serves no calls.
A frozen node starts with its weights, and goes from ``starting`` to ``ready``.
``canary``: it holds a version that is not approved yet, so it serves no calls either.
``suspect``: the auditor found that its tokens do not match their records; its engine is stopped.
"""


def next_state(state: State, event: NodeEvent) -> State:
    """Return the next state of a node; an event without a transition from this state changes nothing."""
    return TRANSITIONS.get((state, event), state)


def is_ready(state: str) -> bool:
    """Return whether a node in this state answers model calls."""
    return state == "ready"


def serves_version(node: Heartbeat, version: int) -> bool:
    """Return whether a node serves a version to new calls: its only version, or one of several adapters."""
    versions = node.status.get("versions")
    return version in versions if isinstance(versions, list) else version == node.version


def is_serving(beat: Heartbeat, model: str, version: int) -> bool:
    """Return whether a heartbeat is of a node that takes calls of a model and answers them with a version."""
    is_node = beat.role == "inference" and beat.model == model
    return is_node and is_ready(beat.state) and serves_version(beat, version)


def observed_state(reported: str, silence: float) -> str:
    """Derive a node's state: the last reported one, unless the node has been silent for too long.

    A process that is done falls silent, and stays done. One that stops falls silent too, and is not suspect for that.
    """
    if reported == DONE:
        return DONE
    if silence >= DEAD_SECONDS or reported == DEAD:
        return DEAD
    if reported in LEAVING_STATES:
        return reported
    return "suspect" if silence >= SUSPECT_SECONDS else reported
