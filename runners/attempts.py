"""What becomes of a task once an attempt has ended: done, tried again, or given up. Pure."""

from dataclasses import dataclass

from schemas.attempts import OURS
from schemas.events import Outcome, Task

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Decision:
    """``retry_after`` seconds, or None: the attempt is the rollout's last word; ``dead``: and a dead letter."""

    retry_after: float | None = None
    dead: bool = False


def exhausted(task: Task, delivery: int) -> bool:
    """Whether the deliveries are used up before this one began: runners died with the task in their hands."""
    return delivery > task.max_attempts


def decide(task: Task, delivery: int, outcome: Outcome) -> Decision:
    """Deliveries count from 1; a retry waits twice as long each time. What is cancelled goes to another at once."""
    if outcome == "cancelled":
        return Decision(retry_after=0.0)
    if outcome not in OURS:
        return Decision()
    if delivery < task.max_attempts:
        return Decision(retry_after=min(FIRST_RETRY_SECONDS * 2 ** (delivery - 1), LONGEST_RETRY_SECONDS))
    return Decision(dead=True)
