"""Choice of the attempt that counts for a rollout: one rule for store and learner. Pure."""

from collections.abc import Iterable
from enum import IntEnum

from lightningbus.schemas.base import Outcome
from lightningbus.schemas.spans import AttemptResult

INFRA_OUTCOMES: frozenset[Outcome] = frozenset({"infra_error", "poison", "preempted"})
"""Outcomes that the agent did not cause: the task is retried, and there is no reward."""
UNGRADED_OUTCOMES: frozenset[Outcome] = frozenset({"reward_timeout", "grading_failed"})
"""Outcomes of an agent that ended well, and that nobody could grade."""
GRADED_OUTCOMES: frozenset[Outcome] = frozenset({"ok", "grading_failed"})
"""Outcomes of an agent that ended well, so that a later grading gives a reward."""
UNREWARDED_OUTCOMES: frozenset[Outcome] = INFRA_OUTCOMES | UNGRADED_OUTCOMES
"""Outcomes that do not measure the agent: in training they never count as a reward of 0."""


class Resolution(IntEnum):
    """Meaning of an attempt's result for its rollout; the lowest value wins."""

    FINAL = 0
    """The agent's own result."""
    ABANDONED = 1
    """The last attempt failed and the task was given up; a replay may still do better."""
    RETRIED = 2
    """Nothing: another attempt follows."""


def resolution_of(result: AttemptResult) -> Resolution:
    """Classify the result of an attempt by its meaning for the rollout."""
    if not result.is_final:
        return Resolution.RETRIED
    return Resolution.ABANDONED if result.outcome in INFRA_OUTCOMES else Resolution.FINAL


def supersedes(new: Resolution, old: Resolution | None) -> bool:
    """Return whether an attempt replaces one that ended earlier in the stream; ``old`` is None where there is none.

    So the rollout is the first final attempt in stream order; until there is one, the first abandoned attempt.
    """
    return new != Resolution.RETRIED and (old is None or new < old)


def select_attempt(results: Iterable[AttemptResult]) -> int | None:
    """Index of the attempt that is the rollout, among the results of its attempts in stream order."""
    best: tuple[Resolution, int] | None = None
    for index, result in enumerate(results):
        resolution = resolution_of(result)
        if supersedes(resolution, best[0] if best else None):
            best = (resolution, index)
    return best[1] if best else None
