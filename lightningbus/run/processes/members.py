"""Waits for processes of a run by their heartbeats."""

import re
from collections.abc import Callable
from pathlib import Path

from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import DONE
from lightningbus.common.aio import WorkInterruptedError, run_unless
from lightningbus.common.processes.memory_limit import describe_memory_limit
from lightningbus.run.errors import UserError
from lightningbus.run.processes.supervisor import Supervisor
from lightningbus.schemas.fleet import Heartbeat

STORE_SECONDS, NODE_SECONDS, RUNNER_SECONDS = 60.0, 600.0, 120.0
"""Longest waits for a store whose process does nothing, for a node that serves a version or a model, and for a runner
that has started its agent."""

EXTRA_AGENT = "evaluation-[0-9a-f]+-[0-9a-f]+"
"""Pattern of the names of agents that have a runner for one evaluation alone; `runner-` and it is the runner's id."""


def is_store(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is a store's. Pure."""
    return beat.role == "store"


def is_running_runner(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is of a runner that has started its agent. Pure."""
    return (beat.role, beat.state) == ("runner", "running")


def is_extra_runner(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is of a runner for one evaluation alone, which has not ended. Pure."""
    return beat.role == "runner" and beat.state != DONE and bool(re.fullmatch(f"runner-{EXTRA_AGENT}", beat.id))


async def wait_for_store(fleet: Fleet, supervisor: Supervisor, log: Path) -> Heartbeat:
    """Wait for a store for as long as its process works; raise `UserError` if it does nothing for `STORE_SECONDS`."""
    try:
        return await run_unless(supervisor.wait_idle("store", STORE_SECONDS), find_member(fleet, is_store))
    except WorkInterruptedError:
        sentence = f"no store within {STORE_SECONDS:g} s, and its process does nothing: see {log}"
        raise UserError(f"{sentence}{describe_memory_limit()}") from None


async def find_member(fleet: Fleet, fits: Callable[[Heartbeat], bool]) -> Heartbeat:
    """Wait for a heartbeat that satisfies the predicate, and return it."""
    while True:
        for beat in fleet.members():
            if fits(beat):
                return beat
        await fleet.wait_for_change()
