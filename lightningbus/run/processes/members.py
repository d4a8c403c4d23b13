"""Waits for processes of a run by their heartbeats."""

from collections.abc import Callable

from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.schemas.fleet import Heartbeat

STORE_SECONDS, NODE_SECONDS, RUNNER_SECONDS = 60.0, 600.0, 120.0
"""Longest waits for a store, a node that serves a version or a model, and a runner that has started its agent."""


def is_store(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is a store's. Pure."""
    return beat.role == "store"


def is_running_runner(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is of a runner that has started its agent. Pure."""
    return (beat.role, beat.state) == ("runner", "running")


async def find_member(fleet: Fleet, fits: Callable[[Heartbeat], bool]) -> Heartbeat:
    """Wait for a heartbeat that satisfies the predicate, and return it."""
    while True:
        for beat in fleet.members():
            if fits(beat):
                return beat
        await fleet.wait_for_change()
