"""Difficulty of tasks: results of their rollouts, and how likely it is that others both pass and fail. Pure."""

from collections.abc import Iterable
from math import exp, lgamma, log

import msgspec
from msgspec.structs import replace

CLOSED = 0.1
"""Probability that a task is hopeless, and that it is trivial, before it has results."""
ERROR = 0.001
"""Probability that a rollout of a hopeless task passes: results of long ago, which count for little, may be errors."""
LEAST_OPENNESS = 0.05
"""However often a task has failed or passed: it is tried again, as the policy changes."""


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


def estimate_openness(passed: float, failed: float) -> float:
    """Compute the probability that a task is open, at least `LEAST_OPENNESS`; 1 for a task without results.

    By Bayes' rule for the beta distribution that is inflated at 0 and 1 (Ospina and Ferrari, arXiv:0705.0700). A task
    is hopeless, trivial or open. Each pass of a hopeless task, and each failure of a trivial one, has the probability
    `ERROR`. The pass rate of an open one is from Beta(2, 2), so its results have the likelihood
    B(2 + passed, 2 + failed) / B(2, 2).
    """
    if not passed + failed:
        return 1.0
    opened = log(1 - 2 * CLOSED) + _log_beta(2 + passed, 2 + failed) - _log_beta(2, 2)
    hopeless, trivial = (log(CLOSED) + num_errors * log(ERROR) for num_errors in (passed, failed))
    return max(LEAST_OPENNESS, 1 / (1 + exp(hopeless - opened) + exp(trivial - opened)))


def _log_beta(first: float, second: float) -> float:
    return lgamma(first) + lgamma(second) - lgamma(first + second)
