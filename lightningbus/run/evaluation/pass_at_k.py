"""pass@k: the probability that one of k answers to a task passes, estimated from n answers. Pure."""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import fmean, stdev

from pydantic import BaseModel, ConfigDict, Field

from lightningbus.store.reports.interval import Interval, estimate_interval, format_mean


class PassAtK(BaseModel):
    """An estimate of pass@k."""

    model_config = ConfigDict(frozen=True)

    mean: float = Field(description="mean over tasks of the probability that one of k answers passes")
    standard_error: float | None = Field(description="of that mean, over tasks; none for a single task")
    interval: Interval | None = Field(
        default=None, description="95 % confidence interval of that mean: the Wilson score interval"
    )

    def __str__(self) -> str:
        return format_mean(self.mean, self.standard_error, self.interval)


def estimate_pass_at_k(num_answers: Sequence[int], num_passed: Sequence[int]) -> dict[int, PassAtK]:
    """Estimate pass@k for k = 1, 2, 4, ..., at most the answers that a task has.

    Both arguments have an entry for each task. A task counts where it has at least k answers. The estimate of a task is
    1 − C(n − c, k) / C(n, k) with c of n answers passed, which has no bias (arXiv:2107.03374, equation 1).
    """
    estimates, k = {}, 1
    while k <= max(num_answers, default=0):
        tasks = [(n, c) for n, c in zip(num_answers, num_passed, strict=True) if n >= k]
        values = [1 - comb(n - c, k) / comb(n, k) for n, c in tasks]
        error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
        mean, answers = fmean(values), sum(n for n, _ in tasks)
        interval = estimate_interval(mean, error, len(tasks), answers, is_success_rate=True)
        estimates[k] = PassAtK(mean=mean, standard_error=error, interval=interval)
        k *= 2
    return estimates
