"""What becomes of an attempt: publish it, or give the task back."""

from dataclasses import dataclass

from schemas.events import Outcome, Task

RETRIED: frozenset[Outcome] = frozenset({"infra", "poisoned"})
"""Not the agent's doing: tried again, and never a reward."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Decision:
    """``retry_after`` seconds, or None: publish the attempt as the rollout's last word."""

    retry_after: float | None


def exhausted(task: Task, attempt: int) -> bool:
    """Whether the deliveries are used up before this one began: runners died with the task in their hands."""
    return attempt > task.max_attempts


def decide(task: Task, attempt: int, outcome: Outcome) -> Decision:
    """Attempts count from 1; a retry waits twice as long each time."""
    if outcome in RETRIED and attempt < task.max_attempts:
        return Decision(min(FIRST_RETRY_SECONDS * 2 ** (attempt - 1), LONGEST_RETRY_SECONDS))
    return Decision(None)
