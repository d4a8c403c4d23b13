"""The loss of a micro-batch: its parts, each over tokens of its own; and the rows that can have a gradient."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.effective_sample import EffectiveSample
from lightningbus.learner.training.loss import has_no_gradient_at_zero, policy_loss, sum_metric
from lightningbus.learner.training.token_weights import CE, KL, PREFERENCE, RL

MAX_RATIO = 2.0
"""Largest weight of a token that the policy samples more often by now than the one that sampled it."""


def step_loss(
    settings: LearnerSettings,
    model_output: Any,
    data: Any,
    dp_group: Any = None,
    effective_sample: EffectiveSample | None = None,
) -> tuple[Any, Any]:
    """Compute loss and metrics of one micro-batch: the policy loss and, where ``data`` has their weights, other parts.

    ``data``: as of `policy_loss`; the weights of `CE`; those of `PREFERENCE`; those of `KL`, with log-probabilities of
    teacher and sampler.
    """
    coefficients = settings.loss_weights
    policy, metrics = policy_loss(settings, model_output, data, dp_group, effective_sample)
    loss, log_probs, fields = coefficients.rl * policy, model_output["log_probs"].values(), set(data.keys())
    if CE in fields:
        imitation = imitation_loss(log_probs, data, CE)
        loss, metrics["actor/ce_loss"] = loss + coefficients.ce * imitation, sum_metric(imitation)
    if PREFERENCE in fields:
        loss = loss + imitation_loss(log_probs, data, PREFERENCE)
    if KL in fields:
        surrogate, divergence = teacher_loss(log_probs, data)
        loss, metrics["actor/teacher_kl"] = loss + coefficients.kl * surrogate, sum_metric(divergence)
    return loss, metrics | {"actor/loss": sum_metric(loss)}


def imitation_loss(log_probs: Any, data: Any, part: str) -> Any:
    """Compute the weighted sum of -log pi over the tokens of a part; a negative weight makes them less likely."""
    positions, weights = _select(data, part)
    return -(log_probs[positions - 1] * weights).sum()


def teacher_loss(log_probs: Any, data: Any) -> tuple[Any, Any]:
    """Compute a loss with the gradient of the divergence KL(pi, teacher) on sampled tokens, and its k3 estimate.

    With d = log pi - log teacher, d^2 / 2 has the gradient d * grad log pi, whose mean over tokens of pi is that of the
    divergence. Tokens of another policy mu weigh min(pi / mu, `MAX_RATIO`).
    """
    from verl.trainer.ppo.core_algos import kl_penalty

    positions, weights = _select(data, KL)
    now, teacher, behavior = (
        log_probs[positions - 1],
        data["teacher_log_probs"].values()[positions],
        data["behavior_log_probs"].values()[positions],
    )
    ratio = (now.detach() - behavior).exp().clamp(max=MAX_RATIO)
    surrogate = (0.5 * ratio * (now - teacher).square() * weights).sum()
    return surrogate, (kl_penalty(now.detach(), teacher, "low_var_kl") * weights).sum()


def find_rows_with_gradient(settings: LearnerSettings, fields: Mapping[str, Sequence[Floats]]) -> list[int]:
    """Return the indices of the sequences that can have a gradient in a part of the loss; at least one.

    ``fields`` has advantages and each part's weights, one ``float32[N]`` per sequence.
    """
    advantages, coefficients = fields["advantages"], settings.loss_weights
    needed = dict.fromkeys(range(len(advantages)), False)
    parts = {RL: coefficients.rl, CE: coefficients.ce, KL: coefficients.kl, PREFERENCE: 1.0}
    for part, coefficient in parts.items():
        for index, weights in enumerate(fields.get(part, ()) if coefficient else ()):
            skips = part == RL and has_no_gradient_at_zero(settings)
            needed[index] |= bool((weights * advantages[index] if skips else weights).any())
    shortest = min(needed, key=lambda index: len(advantages[index]))
    return [index for index, is_needed in needed.items() if is_needed] or [shortest]


def _select(data: Any, part: str) -> tuple[Any, Any]:
    """Return the positions in the micro-batch of a part's tokens, and their weights, times the number of ranks."""
    weights = data[part].values()
    (positions,) = weights.nonzero(as_tuple=True)
    return positions, weights[positions] * data["dp_size"]
