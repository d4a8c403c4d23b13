"""What is done about tokens that another version, or another engine, sampled: verl's rollout correction, over calls.

With ``r = exp(log pi_now - log pi_sampled)`` per token, where ``now`` is the learner at the start of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.batching.sequences import NOT_TRAINED
from learner.settings.learner import LearnerSettings
from learner.training.loss import is_reinforce
from learner.training.tensors import Floats, Segments


@dataclass(frozen=True, slots=True)
class Corrected:
    """Per row, as in `tensors`: the log-probabilities ratios are taken against, factors of the policy loss, segments.

    A token that is rejected is no part of its segment any more.
    """

    old_log_probs: list[Floats]
    importance: list[Floats]
    segments: list[NDArray[np.int64]]
    metrics: dict[str, float]


def corrected(
    now: Sequence[Floats],
    sampled: Sequence[Floats],
    numbers: Sequence[NDArray[np.int64]],
    settings: LearnerSettings,
) -> Corrected:
    """verl's correction by its own names; ``numbers`` are the rows' segments.

    Metrics are verl's ``rollout_corr/…``, ``ess`` and ``trust``.
    """
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    rule = settings.algorithm.rollout_correction
    segments = Segments(numbers)
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        segments.matrix(now),
        segments.matrix(sampled),
        torch.from_numpy(segments.mask).float(),
        rollout_is=rule.rollout_is,
        rollout_is_threshold=rule.rollout_is_threshold,
        rollout_is_batch_normalize=rule.rollout_is_batch_normalize,
        rollout_rs=rule.rollout_rs,
        rollout_rs_threshold=rule.rollout_rs_threshold,
    )
    share = effective_share(now, sampled, numbers)
    factor = trust(share, rule.ess_bound)
    importance = segments.rows(torch.ones(segments.mask.shape))
    if weights is not None and (not rule.bypass_mode or is_reinforce(settings)):
        importance = segments.rows(weights.batch["rollout_is_weights"])
    remaining = segments.rows(kept)
    return Corrected(
        old_log_probs=list(sampled if rule.bypass_mode else now),
        importance=[part * np.float32(factor) for part in importance],
        segments=[np.where(left > 0, segment, NOT_TRAINED) for left, segment in zip(remaining, numbers, strict=True)],
        metrics={**{name: float(value) for name, value in metrics.items()}, "ess": share, "trust": factor},
    )


def effective_share(now: Sequence[Floats], sampled: Sequence[Floats], numbers: Sequence[NDArray[np.int64]]) -> float:
    """Effective sample size of the tokens, as a share of them: ``(sum r)^2 / (n sum r^2)``, 1 where nothing has moved.

    Kong, *A note on importance sampling using standardized weights* (1992). The ratios are not truncated: that would
    hide what is measured.
    """
    parts = zip(now, sampled, numbers, strict=True)
    moved = np.concatenate([(new - old)[segment != NOT_TRAINED] for new, old, segment in parts]).astype(np.float64)
    ratios = np.exp(np.clip(moved, -20.0, 20.0))
    return float(ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())) if len(ratios) else 1.0


def trust(share: float, bound: float) -> float:
    """How much a step counts: ``min(1, share / bound)``, so few effective tokens make a proportionally small step."""
    return min(1.0, share / bound) if bound > 0 else 1.0
