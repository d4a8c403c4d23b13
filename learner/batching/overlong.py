"""Filtering and penalties for answers that are too long: DAPO (arXiv:2503.14476). Pure."""

from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.algorithm import OverlongBufferSettings

OVERLONG = "overlong"
"""Reason for excluding a rollout with a truncated answer."""
CUT = "length"
"""Finish reason of an answer truncated by max_tokens or the model's context."""


def is_cut(rollout: Rollout, model: str) -> bool:
    """Return whether an answer of the model was truncated, so that the reward says little about it."""
    return any(call.finish_reason == CUT for call in rollout.calls if call.model == model)


def find_penalty(rollout: Rollout, model: str, buffer: OverlongBufferSettings | None) -> float:
    """Return the penalty, at most 0, for the longest answer of the model. DAPO, equation 13.

    It is 0 up to L_max - L_buffer tokens, and falls linearly to -1 at L_max, times the factor.
    """
    if buffer is None:
        return 0.0
    longest = max((len(call.response_ids) // 4 for call in rollout.calls if call.model == model), default=0)
    excess = longest - (buffer.max_response_length - buffer.len)
    return -buffer.penalty_factor * min(max(excess / buffer.len, 0.0), 1.0)
