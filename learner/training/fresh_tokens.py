"""Agreement of engine and learner on fresh tokens: those of calls that the version being trained sampled alone.

The learner starts a step at the weights of that version. So both compute one policy there, and differ by rounding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.distributed import ProcessGroup
from lightningbus.learner.training.effective_sample import MAX_LOG_RATIO
from lightningbus.learner.transitions.sequences import TrainSequence

FRESH = "fresh"
"""Field of a micro-batch, ``float32[tokens]``: 1 for a fresh token, else 0."""


def find_fresh(sequence: TrainSequence, version: int | None) -> Floats:
    """Return ``float32[N]``: 1 for the trained tokens of calls that ``version`` sampled alone, else 0. Pure."""
    fresh = np.zeros(len(sequence.token_ids), np.float32)
    trained = sequence.trained
    others = np.unique(sequence.call_index[trained & (sequence.weight_versions != version)])
    fresh[trained & ~np.isin(sequence.call_index, others)] = 1.0
    return fresh


class FreshTokens:
    """Sums over the fresh tokens of one forward pass; the same on every rank once they are gathered."""

    def __init__(self, settings: LearnerSettings) -> None:
        actor = settings.actor
        self._low, self._high = 1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high
        self._has_clip = settings.algorithm.rollout_correction.bypass_mode
        self._sums: NDArray[np.float64] = np.zeros(3)

    def add(self, log_ratios: Any) -> None:
        """Add the fresh tokens of a micro-batch: log of learner by engine, a tensor or an array of any shape."""
        values = np.asarray(log_ratios.detach().cpu() if hasattr(log_ratios, "detach") else log_ratios, np.float64)
        values = np.clip(values, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratios = np.exp(values)
        is_clipped = (ratios < self._low) | (ratios > self._high)
        self._sums += [values.size, float(np.sum(np.expm1(values) - values)), float(is_clipped.sum())]

    def gather(self, group: ProcessGroup) -> Mapping[str, float]:
        """Return `metrics` over all ranks; every rank must call this."""
        parts = group.all_gather({group.rank: self._sums})
        self._sums = np.sum(list(parts.values()), axis=0)
        return self.metrics

    @property
    def metrics(self) -> Mapping[str, float]:
        """``agreement/tokens``, ``agreement/k3``, see `estimate_k3`, and ``agreement/clipped_share``; or none."""
        count, k3, clipped = self._sums.tolist()
        if not count:
            return {}
        metrics = {"agreement/tokens": count, "agreement/k3": k3 / count}
        return {**metrics, "agreement/clipped_share": clipped / count} if self._has_clip else metrics


def compare_fresh(
    settings: LearnerSettings, current: Sequence[Floats], behavior: Sequence[Floats], fresh: Sequence[Floats]
) -> Mapping[str, float]:
    """Return the metrics of whole sequences, which every rank has: one ``float32[N]`` per sequence in each argument."""
    tokens = FreshTokens(settings)
    for now, sampled, mask in zip(current, behavior, fresh, strict=True):
        tokens.add((now - sampled)[mask > 0])
    return tokens.metrics
