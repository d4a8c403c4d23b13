"""The state of a run, for the list of runs and for a run's page. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from lightningbus.bus.fleet.node_state import DONE
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.ui.client import StoreState

IDLE_SECONDS = 120.0
"""A run without a living learner still runs while something has happened within this time."""

EVENT_TIMES = """
SELECT run_id, count() AS events, toUnixTimestamp64Milli(min(at)) AS first_ms,
    toUnixTimestamp64Milli(max(at)) AS last_ms
FROM
(
    SELECT run_id, enqueued_at AS at FROM raw_tasks WHERE {of_run}
    UNION ALL SELECT run_id, ended_at AS at FROM raw_attempts WHERE {of_run}
    UNION ALL SELECT run_id, ended_at AS at FROM raw_training_steps WHERE {of_run}
    UNION ALL SELECT run_id, created_at AS at FROM raw_weight_versions WHERE {of_run}
)
GROUP BY run_id
"""
LAST_STEPS = """
SELECT run_id, model, step, settings FROM raw_training_steps
WHERE {of_run} AND (run_id, model, step) IN
    (SELECT run_id, model, max(step) FROM raw_training_steps WHERE {of_run} GROUP BY run_id, model)
ORDER BY epoch DESC LIMIT 1 BY run_id, model
"""
EVENT_TIMES_OF_ALL, LAST_STEPS_OF_ALL = (sql.replace("{of_run}", "true") for sql in (EVENT_TIMES, LAST_STEPS))
EVENT_TIMES_OF_RUN, LAST_STEPS_OF_RUN = (
    sql.replace("{of_run}", "run_id = {run_id:String}") for sql in (EVENT_TIMES, LAST_STEPS)
)
"""Queries of one run: its event times; and the last training step of each model, with the learner's settings."""


class RunState(StrEnum):
    """State of a run on the pages."""

    RUNNING = "running"
    IDLE = "idle"
    FINISHED = "finished"
    STOPPED = "stopped"
    ENDED = "ended"
    MISSING = "missing"


def choose_state(
    num_events: int,
    seconds_since_last: float,
    last_steps: Sequence[Mapping[str, Any]],
    learners: Iterable[Heartbeat] | None,
    store: StoreState,
) -> RunState:
    """Choose the state of a run with ``num_events`` stored events, the last of them ``seconds_since_last`` ago.

    ``last_steps`` has the last training step of each model: ``model``, ``step``, and ``settings`` with ``max_steps``.
    ``learners`` are the heartbeats of the run's learners; None: no bus answers.
    """
    states = [beat.state for beat in learners or ()]
    done_models = {beat.model for beat in learners or () if beat.state == DONE}
    is_over = store is StoreState.FINISHED
    if not is_over and any(state != DONE for state in states):
        return RunState.RUNNING
    if not num_events and not states:
        return RunState.MISSING
    if not is_over and seconds_since_last < IDLE_SECONDS:
        return RunState.RUNNING
    if last_steps and all(_has_all_steps(last) or last["model"] in done_models for last in last_steps):
        return RunState.FINISHED
    if DONE in states and not last_steps:
        return RunState.FINISHED
    if last_steps and (is_over or learners is not None):
        return RunState.STOPPED
    return RunState.ENDED if is_over else RunState.IDLE


def _has_all_steps(last: Mapping[str, Any]) -> bool:
    return bool(last["step"] >= (last["settings"].get("max_steps") or 0))
