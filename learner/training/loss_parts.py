"""The loss of a micro-batch: its parts, each over tokens of its own; and the rows that can have a gradient."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.learner.engine.policy_engine import TOP_LOG_PROBS
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.effective_sample import EffectiveSample
from lightningbus.learner.training.fresh_tokens import FreshTokens
from lightningbus.learner.training.loss import has_no_gradient_at_zero, policy_loss, sum_metric
from lightningbus.learner.training.teacher_loss import teacher_loss
from lightningbus.learner.training.token_weights import CE, KL, PREFERENCE, RL, select_tokens


def step_loss(
    settings: LearnerSettings,
    model_output: Any,
    data: Any,
    dp_group: Any = None,
    effective_sample: EffectiveSample | None = None,
    fresh_tokens: FreshTokens | None = None,
) -> tuple[Any, Any]:
    """Compute loss and metrics of one micro-batch: the policy loss and, where ``data`` has their weights, other parts.

    ``data``: as of `policy_loss`; the weights of `CE`; those of `PREFERENCE`; those of `KL`, with the fields of
    `make_teacher_fields`. The log-probabilities of several tokens at a place are taken out of ``model_output``, as verl
    keeps it until the last micro-batch.
    """
    coefficients = settings.loss_weights
    policy, metrics = policy_loss(settings, model_output, data, dp_group, effective_sample, fresh_tokens)
    loss, log_probs, fields = coefficients.rl * policy, model_output["log_probs"].values(), set(data.keys())
    if CE in fields:
        imitation = imitation_loss(log_probs, data, CE)
        loss, metrics["actor/ce_loss"] = loss + coefficients.ce * imitation, sum_metric(imitation)
    if PREFERENCE in fields:
        loss = loss + imitation_loss(log_probs, data, PREFERENCE)
    if KL in fields:
        surrogate, divergence = teacher_loss(model_output, data, settings.direction)
        model_output.pop(TOP_LOG_PROBS, None)
        loss, metrics["actor/teacher_kl"] = loss + coefficients.kl * surrogate, sum_metric(divergence)
    return loss, metrics | {"actor/loss": sum_metric(loss)}


def imitation_loss(log_probs: Any, data: Any, part: str) -> Any:
    """Compute the weighted sum of -log pi over the tokens of a part; a negative weight makes them less likely."""
    positions, weights = select_tokens(data, part)
    return -(log_probs[positions - 1] * weights).sum()


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
