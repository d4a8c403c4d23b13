"""States of an inference node, and what leads from one to the next. Pure."""

from typing import Literal

State = Literal["starting", "stale", "ready", "draining", "dead"]
Happening = Literal["engine_up", "weights_applied", "engine_lost", "stop"]

NEXT: dict[tuple[State, Happening], State] = {
    ("starting", "engine_up"): "stale",
    ("stale", "weights_applied"): "ready",
    ("ready", "weights_applied"): "ready",
    ("starting", "engine_lost"): "dead",
    ("stale", "engine_lost"): "starting",
    ("ready", "engine_lost"): "starting",
    ("starting", "stop"): "draining",
    ("stale", "stop"): "draining",
    ("ready", "stop"): "draining",
    ("dead", "stop"): "draining",
}
"""``stale``: the engine runs, but holds no verified version from the bus, so it serves nobody."""


def step(state: State, happening: Happening) -> State:
    """The next state; what does not matter in a state leaves it as it is."""
    return NEXT.get((state, happening), state)


def serves(state: State) -> bool:
    """Whether model calls are answered."""
    return state == "ready"
