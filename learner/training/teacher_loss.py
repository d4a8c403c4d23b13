"""The teacher's part of a loss: a divergence of policy and teacher at each token that a teacher has scored."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.engine.policy_engine import TOP_IDS, TOP_LOG_PROBS
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import Direction
from lightningbus.learner.training.token_weights import KL, select_tokens
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

MAX_RATIO = 2.0
"""Largest weight of a token that the policy samples more often by now than the one that sampled it."""
MAX_GAIN = 80.0
"""Largest log-ratio of teacher and policy whose exponential float32 holds."""
MIN_REMAINDER = 1e-6
"""Smallest probability of all tokens but the teacher's likeliest: float32 sums tell no smaller one."""
TEACHER, BEHAVIOR, TEACHER_TOP = "teacher_log_probs", "behavior_log_probs", "teacher_top_log_probs"
"""Fields with a token's log-probability under teacher and sampler, and with those of the teacher's likeliest tokens."""


def make_teacher_fields(
    sequences: Sequence[TrainSequence], fields: Mapping[str, Sequence[NDArray[Any]]]
) -> dict[str, Sequence[NDArray[Any]]]:
    """Return the fields of the teacher's part, one array per sequence; it has no token that the correction rejects.

    ``fields`` has the factors of `KL` and ``segments``. With likeliest tokens, `TOP_IDS` is ``int64[N, k]`` and
    `TEACHER_TOP` ``float32[N, k]``.
    """
    scores = [row.teacher_scores or TeacherScores.empty(len(row.token_ids)) for row in sequences]
    top_k = max(each.top_k for each in scores)
    arrays: dict[str, Sequence[NDArray[Any]]] = {
        TEACHER: [np.nan_to_num(each.logprobs) for each in scores],
        BEHAVIOR: [sequence.logprobs for sequence in sequences],
        KL: [factor * (ids != CONTEXT) for factor, ids in zip(fields[KL], fields["segments"], strict=True)],
    }
    if top_k:
        wide = [each.widen(top_k) for each in scores]
        arrays |= {TOP_IDS: [each.top_ids.astype(np.int64) for each in wide]}
        arrays |= {TEACHER_TOP: [each.top_logprobs for each in wide]}
    return arrays


def teacher_loss(model_output: Mapping[str, Any], data: Any, direction: Direction) -> tuple[Any, Any]:
    """Compute a loss with the gradient of the teacher's divergence, and that divergence, summed by the weights of `KL`.

    A token with the teacher's likeliest tokens has the divergence of `coarse_divergence` itself. For another it is
    estimated from the sampled token: with d = log pi - log teacher, d^2 / 2 has the gradient d * grad log pi, whose
    mean over tokens of pi is that of KL(pi, teacher). There tokens of another policy mu weigh min(pi / mu, `MAX_RATIO`)
    and the metric is the k3 estimate.
    """
    positions, weights = select_tokens(data, KL)
    now, teacher, behavior = (
        model_output["log_probs"].values()[positions - 1],
        data[TEACHER].values()[positions],
        data[BEHAVIOR].values()[positions],
    )
    ratio = (now.detach() - behavior).exp().clamp(max=MAX_RATIO)
    surrogate = ratio * (now - teacher) ** 2 / 2
    gain = teacher - now.detach()
    divergence = (gain.clamp(max=MAX_GAIN).expm1() - gain).clamp(min=0)  # verl's own is cut at 10; rounding is below 0
    if TEACHER_TOP in set(data.keys()):
        top = data[TEACHER_TOP].values()[positions]
        exact = coarse_divergence(model_output[TOP_LOG_PROBS].values()[positions - 1], top, direction)
        has_top = top.isfinite().any(-1)
        surrogate, divergence = exact.where(has_top, surrogate), exact.detach().where(has_top, divergence)
    return (surrogate * weights).sum(), (divergence * weights).sum()


def coarse_divergence(log_probs: Any, teacher: Any, direction: Direction) -> Any:
    """Compute ``float32[n]``: the divergence of policy and teacher over ``k`` tokens and the rest, in nats.

    ``log_probs`` and ``teacher`` are ``float32[n, k]``: log pi and log p of the teacher's k likeliest tokens; an entry
    of -inf in ``teacher`` is no token. All other tokens are one event, of probability 1 - sum of the k, at least
    `MIN_REMAINDER`. So both are distributions over k + 1 events, and with sums over these

    - reverse: KL(pi, p) = sum pi (log pi - log p),
    - forward: KL(p, pi) = sum p (log p - log pi),

    the two ends of arXiv:2306.13649, section 3. By the data processing inequality each is at most the divergence over
    the whole vocabulary; it is 0 only where pi and p agree on all events. Without the rest, the least value of
    the forward one has no probability outside the k tokens (arXiv:2503.16870, section 3).
    """
    is_token = teacher.isfinite()
    teacher = teacher.where(is_token, teacher.new_zeros(()))
    policy_share, teacher_share = log_probs.exp() * is_token, teacher.exp() * is_token
    policy_rest = (1 - policy_share.sum(-1)).clamp(min=MIN_REMAINDER)
    teacher_rest = (1 - teacher_share.sum(-1)).clamp(min=MIN_REMAINDER)
    if direction == "forward":
        events = (teacher_share * (teacher - log_probs)).sum(-1)
        return events + teacher_rest * (teacher_rest.log() - policy_rest.log())
    events = (policy_share * (log_probs - teacher)).sum(-1)
    return events + policy_rest * (policy_rest.log() - teacher_rest.log())
