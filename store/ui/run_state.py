"""Whether a run goes on. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from bus.fleet.node_state import DONE
from schemas.fleet import Heartbeat
from store.ui.client import StoreState

IDLE_SECONDS = 120.0
"""A run without a learner goes on while something has happened within this time."""


class RunState(StrEnum):
    """What the page says of a run."""

    LIVE = "live"
    IDLE = "idle"
    FINISHED = "finished"
    MISSING = "missing"


def run_state(
    run_id: str, events: int, seconds_since_last: float, store: StoreState, members: Iterable[Heartbeat]
) -> RunState:
    """The state of a run with so many stored events, the last of them so many seconds ago."""
    learners = [beat for beat in members if beat.run_id == run_id]
    if not events and not learners:
        return RunState.MISSING
    if store is StoreState.FINISHED:
        return RunState.FINISHED
    if seconds_since_last < IDLE_SECONDS or any(beat.state != DONE for beat in learners):
        return RunState.LIVE
    return RunState.FINISHED if learners else RunState.IDLE
