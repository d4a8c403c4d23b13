"""Difficulty of tasks: results of their rollouts, and the signal that another group can be expected to have. Pure."""

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec.structs import replace

PRIOR = 0.5
"""Rollouts of each kind that every task is taken to have had: Jeffreys' prior."""


class TaskResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """Results of a task so far, of which older ones count less; part of the checkpoint."""

    passed: float = 0.0
    failed: float = 0.0
    selected_at: int = -1
    """Number of the group for which it was selected last; -1: it never was."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Choice of a task for a group, and its grounds; part of the checkpoint and of the journal."""

    task: str
    """Id of the task in its file."""
    passed: float
    failed: float
    weight: float
    share: float
    """Weight by the sum of the weights of all tasks of its set."""
    decided_at_ns: int


def add_results(results: TaskResults, rewards: Iterable[float], pass_reward: float, memory: float) -> TaskResults:
    """Add the rewards of a group; earlier results are kept in the share ``memory``, because the policy has changed."""
    num_passed, num_failed = count_results(rewards, pass_reward)
    if not num_passed + num_failed:
        return results
    return replace(results, passed=memory * results.passed + num_passed, failed=memory * results.failed + num_failed)


def count_results(rewards: Iterable[float], pass_reward: float) -> tuple[int, int]:
    """Count the rewards of rollouts that passed, and of those that failed."""
    passes = [reward >= pass_reward for reward in rewards]
    return sum(passes), len(passes) - sum(passes)


@lru_cache(maxsize=4096)
def expect_signal(passed: float, failed: float, group_size: int) -> float:
    """Compute the probability that rollouts of a new group both pass and fail; it is above 0 for every task.

    One less the moments E[pⁿ] and E[(1-p)ⁿ] of the posterior Beta distribution of the pass rate p. A group of one
    counts as two: an estimator that compares no rollouts still learns most where the outcome is open.
    """
    size = max(2, group_size)
    return 1 - _moment(passed, failed, size) - _moment(failed, passed, size)


def _moment(successes: float, failures: float, power: int) -> float:
    moment = 1.0
    for number in range(power):
        moment *= (PRIOR + successes + number) / (2 * PRIOR + successes + failures + number)
    return moment
