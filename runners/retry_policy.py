"""Decisions about a task: whether it can be run at all, and whether an ended attempt is final, retried, or given up.

Pure.
"""

import json
from dataclasses import dataclass

from lightningbus.common.backoff import RetryPolicy
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.trajectory.attempt_selection import INFRA_OUTCOMES

RETRY_POLICY = RetryPolicy(1.0, 30.0)
MAX_DELIVERIES = 10
"""Deliveries of a task that fails its runner each time, before any of its events could be published."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """``retry_after`` seconds, or None: the attempt is final; ``dead_letter``: the task becomes a dead letter too."""

    retry_after: float | None = None
    dead_letter: bool = False


def is_exhausted(task: Task, num_delivered: int) -> bool:
    """Return whether the deliveries were used up before this one: runners died while they had the task."""
    return num_delivered > task.max_attempts


def find_problem(task: Task) -> str:
    """Explain why no runner can ever run a task; empty if one can."""
    try:
        json.dumps(task.input, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"its input is no JSON: {error}"
    return ""


def decide_next_action(task: Task, num_delivered: int, outcome: Outcome) -> RetryDecision:
    """Decide about the task; deliveries count from 1. A preempted attempt is retried, one that kills engines is not."""
    if outcome == "preempted":
        return RetryDecision(retry_after=0.0)
    if outcome == "poison":
        return RetryDecision(dead_letter=True)
    if outcome not in INFRA_OUTCOMES:
        return RetryDecision()
    if num_delivered < task.max_attempts:
        return RetryDecision(retry_after=RETRY_POLICY.delay_after(num_delivered))
    return RetryDecision(dead_letter=True)
