"""Advantages of scores: one score per rollout in, its advantage out. Pure."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

GAE = "gae"
"""The estimator that needs a critic: scores are its rewards, which `lightningbus.learner.training.critic` spreads."""
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 2.0**-21, 1e-12
"""Scores that differ by less are equal: four steps of float32, or the error of a float64 sum that cancels out."""
SIGNIFICANT_DIGITS = 12
"""Digits of a reward that count: further ones are the error of a sum, which depends on its order."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """A function of ``n`` scores, their ``n`` groups and the ``n`` numbers of tokens behind them.

    Fields:
        function: what is called; it returns ``n`` advantages
        is_batchwide: whether a score's advantage depends on scores of other groups
    """

    function: Callable[[Sequence[float], Sequence[Hashable], Sequence[int] | None], list[float]]
    is_batchwide: bool = False

    def __call__(
        self, scores: Sequence[float], groups: Sequence[Hashable], num_tokens: Sequence[int] | None = None
    ) -> list[float]:
        """Return the advantage of each score in its group, ``n`` finite numbers; none for no scores.

        ``groups`` has a key for each score, such as the id of its task. ``num_tokens`` is for estimators that weigh by
        length; None: unknown.
        """
        return self.function(scores, groups, num_tokens) if scores else []


def are_equal(scores: Sequence[float]) -> bool:
    """Return whether scores are equal up to the errors of floating-point sums."""
    return math.isclose(min(scores), max(scores), rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


def drop_error(reward: float) -> float:
    """Round a reward to the digits that count, so that 0.1 + 0.2 and 0.3 give the same batch."""
    return float(f"{reward:.{SIGNIFICANT_DIGITS}g}") if abs(reward) >= ABSOLUTE_TOLERANCE else 0.0
