"""Advantages of scores: one score per rollout in, its advantage out. Pure."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

GAE = "gae"
"""The estimator that needs a critic: scores are its rewards, which `lightningbus.learner.training.critic` spreads."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """A function of ``n`` scores, their ``n`` groups and the ``n`` numbers of tokens behind them."""

    function: Callable[[Sequence[float], Sequence[Hashable], Sequence[int] | None], list[float]]
    is_batchwide: bool = False
    """Whether a score's advantage depends on scores of other groups."""

    def __call__(
        self, scores: Sequence[float], groups: Sequence[Hashable], num_tokens: Sequence[int] | None = None
    ) -> list[float]:
        """Return the advantage of each score. ``num_tokens`` is for estimators that weigh by length."""
        return self.function(scores, groups, num_tokens) if scores else []
