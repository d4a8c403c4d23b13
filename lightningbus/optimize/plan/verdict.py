"""Comparison of held-out rewards that decides whether prompts may be released. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean rewards of the prompts in use and of the best ones, over the same held-out tasks."""

    before: float
    after: float
    standard_error: float | None
    """Standard error of the difference, over tasks; None for a single task."""
    num_tasks: int
    is_approved: bool

    @property
    def reason(self) -> str:
        """A sentence for the record of decisions."""
        what = "not worse" if self.is_approved else "worse"
        return f"held-out reward {what}: {self.before:.4g} before, {self.after:.4g} after"

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for the record of decisions."""
        error = {} if self.standard_error is None else {"standard_error": self.standard_error}
        return {"before": self.before, "after": self.after, "tasks": float(self.num_tasks), **error}


def compare(before: Sequence[float], after: Sequence[float], max_drop: float) -> Comparison:
    """Compare mean rewards by task, in the same order; approved if they fall by no more than ``max_drop``."""
    differences = [new - old for old, new in zip(before, after, strict=True)]
    error = stdev(differences) / sqrt(len(differences)) if len(differences) > 1 else None
    means = fmean(before), fmean(after)
    return Comparison(*means, error, len(differences), means[1] >= means[0] - max_drop)
