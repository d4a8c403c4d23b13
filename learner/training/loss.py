"""Losses over calls: verl's policy losses or a user's, KL and value loss, each token with its own weight.

verl averages over the sequences of a micro-batch. Here `token_weights` fixes the weight of every token beforehand, a
loss is a sum, and its sequence is a call. So the split into sequences, micro-batches and ranks does not matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.settings.import_path import is_import_path
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.own_function import OwnFunction
from lightningbus.learner.settings.verl_fields import read_fields
from lightningbus.learner.settings.verl_sections import ACTOR, POLICY_LOSS
from lightningbus.learner.training.effective_sample import EffectiveSample
from lightningbus.learner.training.fresh_tokens import FRESH, FreshTokens
from lightningbus.learner.training.own_loss import LOSS_SETTING, compute_own_loss
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

PRODUCTS_WITH_ADVANTAGE = {"vanilla", "gspo", "cispo", "gpg", "dppo_tv", "dppo_kl", "sapo", "geo_mean"}
"""Losses of a token that are its advantage times something: ``dro`` adds a penalty, ``clip_cov`` compares tokens."""

ENTROPY_SUM, WEIGHT_SUM = "actor/entropy_sum", "actor/weight_sum"
"""Metrics of micro-batches: the entropy of their tokens by weight, and the weights."""


@dataclass(frozen=True, slots=True)
class _PackedSegments:
    """The trained tokens of a micro-batch: ``n`` tokens, ``S`` segments of at most ``T``."""

    positions: Any
    """``int64[n]``: their positions in the micro-batch."""
    lengths: list[int]
    mask: Any
    """``bool[S, T]``"""

    def to_matrix(self, flat: Any) -> Any:
        """Arrange ``n`` values as ``[S, T]``, one segment a line."""
        import torch

        return torch.nn.utils.rnn.pad_sequence(list(flat.split(self.lengths)), batch_first=True)

    def field(self, data: Any, name: str) -> Any:
        """Return a field of the micro-batch as ``[S, T]``."""
        return self.to_matrix(data[name].values()[self.positions])

    def gather_predictions(self, output: Any) -> Any:
        """Return the model's prediction of each token as ``[S, T]``, read at the position before it."""
        return self.to_matrix(output.values()[self.positions - 1])


def policy_loss(
    settings: LearnerSettings,
    model_output: Any,
    data: Any,
    dp_group: Any = None,
    effective_sample: EffectiveSample | None = None,
    fresh_tokens: FreshTokens | None = None,
) -> tuple[Any, Any]:
    """Compute loss and metrics of one micro-batch: policy loss, KL to the reference, and entropy.

    ``data`` holds, per token, ``segments``, ``old_log_probs``, ``advantages``, ``weights`` (of the token in the sum),
    ``importance`` (its factor in the policy loss alone) and with a KL loss ``ref_log_prob``. The ratios of tokens that
    can have a gradient are added to ``effective_sample``, and those of tokens that are `FRESH` to ``fresh_tokens``.
    """
    from verl.trainer.ppo.core_algos import kl_penalty

    actor, ranks = settings.actor, data["dp_size"]
    segments = _pack_segments(data)
    if segments is None:
        return model_output["log_probs"].values().sum() * 0.0, {}
    log_probs = segments.gather_predictions(model_output["log_probs"])
    weights = segments.field(data, "weights")
    if effective_sample is not None:
        counts = segments.mask
        if has_no_gradient_at_zero(settings):
            counts = counts & (segments.field(data, "advantages") != 0)
        effective_sample.add((log_probs - segments.field(data, "old_log_probs"))[counts])
    if fresh_tokens is not None:
        is_fresh = segments.mask & (segments.field(data, FRESH) > 0)
        fresh_tokens.add((log_probs - segments.field(data, "old_log_probs"))[is_fresh])
    compute = _own_loss if is_import_path(actor.policy_loss) and not is_reinforce(settings) else _verl_loss
    loss, loss_metrics = compute(settings, segments, log_probs, data)
    metrics = {**loss_metrics, "actor/pg_loss": sum_metric(loss)}
    if "entropy" in model_output:
        entropy = (segments.gather_predictions(model_output["entropy"]) * weights).sum() * ranks
        metrics |= {ENTROPY_SUM: sum_metric(entropy), WEIGHT_SUM: sum_metric(weights.sum() * ranks)}
        if actor.entropy_coeff > 0:
            metrics["actor/entropy_loss"] = sum_metric(entropy)
            loss = loss - actor.entropy_coeff * entropy
    if actor.use_kl_loss:
        divergence = kl_penalty(log_probs, segments.field(data, "ref_log_prob"), actor.kl_loss_type)
        kl = (divergence * weights).sum() * ranks
        metrics["actor/kl_loss"] = sum_metric(kl)
        loss = loss + actor.kl_loss_coef * kl
    metrics["actor/loss"] = sum_metric(loss)
    return loss, metrics


def _verl_loss(settings: LearnerSettings, segments: _PackedSegments, log_probs: Any, data: Any) -> tuple[Any, Any]:
    """Compute verl's registered policy loss, or its REINFORCE."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_reinforce, get_policy_loss_fn

    name, ranks = settings.actor.policy_loss, data["dp_size"]
    arguments = {
        "log_prob": log_probs,
        "advantages": segments.field(data, "advantages"),
        "response_mask": segments.mask,
        "loss_agg_mode": "token-sum",
        "config": actor_config(settings, ranks),
        # verl multiplies each token's loss by these last of all: the one place where a weight is exact for every loss.
        "rollout_is_weights": segments.field(data, "weights")
        * segments.field(data, "importance")
        * _undo_builtin_mean(name, segments, ranks),
    }
    old = segments.field(data, "old_log_probs")
    if is_reinforce(settings):
        return compute_policy_loss_reinforce(rollout_log_prob=old, **arguments)
    return get_policy_loss_fn(name)(old_log_prob=old, **arguments)  # type: ignore[no-any-return]


def _own_loss(settings: LearnerSettings, segments: _PackedSegments, log_probs: Any, data: Any) -> tuple[Any, Any]:
    """Sum a user's own loss over tokens, each with its weight."""
    weights = segments.field(data, "weights") * segments.field(data, "importance")
    old, advantages = segments.field(data, "old_log_probs"), segments.field(data, "advantages")
    user_function = OwnFunction.load(LOSS_SETTING, settings.actor.policy_loss)
    return compute_own_loss(
        user_function, log_probs, old, advantages, segments.mask, weights * data["dp_size"], settings.actor
    ), {}


def value_loss(settings: LearnerSettings, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, Any]:
    """Compute verl's clipped value loss of one micro-batch.

    ``data`` has ``segments``, ``values``, ``returns`` and ``weights``.
    """
    from verl.trainer.ppo.core_algos import compute_value_loss

    segments = _pack_segments(data)
    if segments is None:
        return model_output["values"].values().sum() * 0.0, {}
    loss, clipped = compute_value_loss(
        vpreds=segments.gather_predictions(model_output["values"]),
        returns=segments.field(data, "returns"),
        values=segments.field(data, "values"),
        response_mask=segments.field(data, "weights"),
        cliprange_value=settings.critic.cliprange_value,
        loss_agg_mode="token-sum",
        dp_size=data["dp_size"],
    )
    return loss, {"critic/vf_loss": sum_metric(loss), "critic/vf_clipfrac": clipped.item()}


def divide_entropy(metrics: Mapping[str, float]) -> dict[str, float]:
    """Replace the two sums in the metrics by ``actor/entropy``, the mean over the tokens of an update."""
    kept = {name: value for name, value in metrics.items() if name not in (ENTROPY_SUM, WEIGHT_SUM)}
    weight = metrics.get(WEIGHT_SUM, 0.0)
    return {**kept, "actor/entropy": metrics[ENTROPY_SUM] / weight} if weight else kept


def name_grad_norm(metrics: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Rename ``grad_norm`` in verl's metrics to ``<who>/grad_norm``; one of the ranks that share sequences has it."""
    return {f"{who}/{name}" if name == "grad_norm" else name: value for name, value in metrics.items()}


def find_tokens_with_gradient(
    settings: LearnerSettings, sequences: Sequence[TrainSequence], advantages: Sequence[NDArray[np.float32]]
) -> list[NDArray[np.bool_]]:
    """Return a mask, ``bool[N]`` per sequence, of the trained tokens that can have a gradient."""
    skips = has_no_gradient_at_zero(settings)
    pairs = zip(sequences, advantages, strict=True)
    return [sequence.trained & (values != 0) if skips else sequence.trained for sequence, values in pairs]


def has_no_gradient_at_zero(settings: LearnerSettings) -> bool:
    """Return whether a token of advantage 0 has no gradient.

    It has one from KL, entropy, and losses that are no product with the advantage.
    """
    actor = settings.actor
    is_product = is_reinforce(settings) or actor.policy_loss in PRODUCTS_WITH_ADVANTAGE
    return is_product and not actor.use_kl_loss and actor.entropy_coeff == 0


def is_reinforce(settings: LearnerSettings) -> bool:
    """Return whether verl's bypass mode replaces the policy loss by importance-weighted REINFORCE."""
    rule = settings.algorithm.rollout_correction
    return rule.bypass_mode and rule.loss_type == "reinforce"


def actor_config(settings: LearnerSettings, ranks: int = 1) -> Any:
    """Build verl's ActorConfig; raises ValueError for an unknown loss or option."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    actor = settings.actor
    losses = sorted(set(POLICY_LOSS_REGISTRY) - {"bypass_mode"})  # that one is `rollout_correction.bypass_mode` here
    loss_config = PolicyLossConfig()
    if is_import_path(actor.policy_loss):
        OwnFunction.load(LOSS_SETTING, actor.policy_loss)
    elif actor.policy_loss not in losses:
        known = ", ".join(losses)
        raise ValueError(f"policy_loss: {actor.policy_loss!r} is not known; known: {known}, or module:function")
    else:
        options = read_fields(POLICY_LOSS, actor.policy_loss_options)
        loss_config = PolicyLossConfig(loss_mode=actor.policy_loss, **options)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=settings.group_size,
        use_dynamic_bsz=True,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        loss_agg_mode="token-sum",
        policy_loss=loss_config,
        **read_fields(ACTOR, settings.verl.actor),
    )
    config.global_batch_info.update(
        {"dp_size": ranks, "batch_num_tokens": None, "global_batch_size": 1, "loss_scale_factor": None}
    )
    return config


def _undo_builtin_mean(policy_loss: str, segments: _PackedSegments, ranks: int) -> Any:
    """Return the factor that undoes the mean some of verl's losses take whatever ``loss_agg_mode`` says.

    ``sapo`` divides by T_s, the tokens of the segment; ``geo_mean`` has one loss per segment and takes their mean.
    """
    tokens = segments.mask.sum(-1, keepdim=True)
    if policy_loss == "sapo":
        return tokens
    if policy_loss == "geo_mean":
        return tokens * len(tokens) * ranks
    return 1.0


def _pack_segments(data: Any) -> _PackedSegments | None:
    import torch

    ids = data["segments"].values()
    (positions,) = torch.nonzero(ids != CONTEXT, as_tuple=True)
    if len(positions) == 0:
        return None
    lengths = torch.unique_consecutive(ids[positions], return_counts=True)[1]
    mask = torch.arange(int(lengths.max()), device=lengths.device)[None] < lengths[:, None]
    return _PackedSegments(positions, lengths.tolist(), mask)


def sum_metric(value: Any) -> Any:
    """Make a metric that is the sum over micro-batches."""
    from verl.utils.metric import AggregationType, Metric

    return Metric(value=value.detach(), aggregation=AggregationType.SUM)
