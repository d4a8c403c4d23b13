"""Corrects for tokens that another version, or another engine, sampled: verl's rollout correction, over calls.

With ``r = exp(log pi_current - log pi_behavior)`` per token: *current* is the learner at the start of the step,
*behavior* the engine that sampled the token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.batching.sequences import CONTEXT
from learner.settings.learner import LearnerSettings
from learner.training.loss import is_reinforce
from learner.training.tensors import Floats, Segments


@dataclass(frozen=True, slots=True)
class Correction:
    """One array per sequence: what ratios are taken against, factors of the policy loss, and segment ids.

    A token that is rejected is no part of its segment any more.
    """

    old_log_probs: list[Floats]
    importance: list[Floats]
    segment_ids: list[NDArray[np.int64]]
    step_scale: float
    """What the learning rate of the step is multiplied by."""
    metrics: dict[str, float]


def apply_rollout_correction(
    current: Sequence[Floats], behavior: Sequence[Floats], segments: Segments, settings: LearnerSettings
) -> Correction:
    """verl's correction of log-probabilities, one ``float32[N]`` per sequence each.

    Metrics are verl's ``rollout_corr/…``, ``ess`` and ``ess_scale``.
    """
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    rule = settings.algorithm.rollout_correction
    weights, accepted, metrics = compute_rollout_correction_and_rejection_mask(
        segments.to_matrix(current),
        segments.to_matrix(behavior),
        torch.from_numpy(segments.mask).float(),
        rollout_is=rule.rollout_is,
        rollout_is_threshold=rule.rollout_is_threshold,
        rollout_is_batch_normalize=rule.rollout_is_batch_normalize,
        rollout_rs=rule.rollout_rs,
        rollout_rs_threshold=rule.rollout_rs_threshold,
    )
    ess = effective_sample_size(current, behavior, segments.ids)
    scale = ess_scale(ess, rule.ess_bound)
    importance = segments.from_matrix(torch.ones(segments.mask.shape))
    if weights is not None and (not rule.bypass_mode or is_reinforce(settings)):
        importance = segments.from_matrix(weights.batch["rollout_is_weights"])
    return Correction(
        old_log_probs=list(behavior if rule.bypass_mode else current),
        importance=importance,
        step_scale=scale,
        segment_ids=[
            np.where(mask > 0, ids, CONTEXT)
            for mask, ids in zip(segments.from_matrix(accepted), segments.ids, strict=True)
        ],
        metrics={**{name: float(value) for name, value in metrics.items()}, "ess": ess, "ess_scale": scale},
    )


def effective_sample_size(
    current: Sequence[Floats], behavior: Sequence[Floats], segment_ids: Sequence[NDArray[np.int64]]
) -> float:
    """Effective sample size as a share of all tokens: ``(sum r)^2 / (n sum r^2)``, 1 where nothing has moved.

    Kong, *A note on importance sampling using standardized weights* (1992). The ratios are not truncated: that would
    hide what is measured.
    """
    log_ratios = [
        (now - sampled)[ids != CONTEXT] for now, sampled, ids in zip(current, behavior, segment_ids, strict=True)
    ]
    ratios = np.exp(np.clip(np.concatenate(log_ratios).astype(np.float64), -20.0, 20.0))
    return float(ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())) if len(ratios) else 1.0


def ess_scale(ess: float, bound: float) -> float:
    """Factor of a step's learning rate: ``min(1, ess / bound)``: few effective tokens move the weights little."""
    return min(1.0, ess / bound) if bound > 0 else 1.0
