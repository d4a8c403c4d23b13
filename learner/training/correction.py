"""Correction for tokens that another version, or another engine, sampled: verl's rollout correction, over calls.

*Current* is the learner at the start of the step, *behavior* the engine that sampled the token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.loss import is_reinforce
from lightningbus.learner.training.tensors import Segments
from lightningbus.learner.transitions.sequences import CONTEXT


@dataclass(frozen=True, slots=True)
class Correction:
    """One array per sequence: what ratios are taken against, factors of the policy loss, and segment ids.

    A token that is rejected is no part of its segment any more.
    """

    old_log_probs: list[Floats]
    importance: list[Floats]
    segment_ids: list[NDArray[np.int64]]
    metrics: dict[str, float]


def needs_log_probs(settings: LearnerSettings) -> bool:
    """Return whether the update needs *current* of the whole batch before the weights move, which takes a forward pass.

    With PPO's ratio against *behavior* (``bypass_mode``) only rejection, REINFORCE's weights, and the guard of several
    updates do. The guard of a single update sees the ratios in the update itself.
    """
    rule = settings.algorithm.rollout_correction
    has_weights = rule.rollout_is is not None and (not rule.bypass_mode or is_reinforce(settings))
    has_guard = rule.ess_bound > 0 and not settings.has_single_update
    return not rule.bypass_mode or has_weights or rule.rollout_rs is not None or has_guard


def leave_uncorrected(behavior: Sequence[Floats], segments: Segments) -> Correction:
    """Return the correction of `apply_rollout_correction` where ``needs_log_probs`` is false, without metrics."""
    ones = [np.ones_like(values) for values in behavior]
    return Correction(list(behavior), ones, segments.ids, {})


def apply_rollout_correction(
    current: Sequence[Floats], behavior: Sequence[Floats], segments: Segments, settings: LearnerSettings
) -> Correction:
    """Apply verl's correction to log-probabilities, one ``float32[N]`` per sequence each.

    Metrics are verl's ``rollout_corr/…``, with k3 by `estimate_k3`.
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
    metrics["rollout_corr/k3_kl"] = estimate_k3(current, behavior, segments)
    importance = [np.ones_like(values) for values in behavior]
    if weights is not None and (not rule.bypass_mode or is_reinforce(settings)):
        importance = segments.from_matrix(weights.batch["rollout_is_weights"])
    return Correction(
        old_log_probs=list(behavior if rule.bypass_mode else current),
        importance=importance,
        segment_ids=[
            np.where(mask > 0, ids, CONTEXT)
            for mask, ids in zip(segments.from_matrix(accepted), segments.ids, strict=True)
        ],
        metrics={name: float(value) for name, value in metrics.items()},
    )


def estimate_k3(current: Sequence[Floats], behavior: Sequence[Floats], segments: Segments) -> float:
    """Estimate the divergence of *behavior* and *current* over the tokens of all segments, in nats per token.

    Schulman's k3 (http://joschu.net/blog/kl-approx.html): the mean of exp(d) - 1 - d, d = log *current* - log
    *behavior*. It is never below 0. In single precision, as verl computes it, the rounding of exp(d) exceeds the result
    where d is small, and may give less than 0.
    """
    difference = (segments.to_matrix(current).double() - segments.to_matrix(behavior).double()).numpy()[segments.mask]
    return float(np.mean(np.expm1(difference) - difference))
