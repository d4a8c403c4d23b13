"""What is done about answers that are too long: DAPO's filtering and soft punishment (arXiv:2503.14476). Pure."""

from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.algorithm import OverlongBufferSettings

OVERLONG = "overlong"
"""Why a rollout is excluded of which an answer was cut."""
CUT = "length"
"""The finish reason of an answer that max_tokens, or the model's context, has cut."""


def is_cut(rollout: Rollout, model: str) -> bool:
    """Whether an answer of the model was cut, so that the reward says little of it."""
    return any(call.finish_reason == CUT for call in rollout.calls if call.model == model)


def find_penalty(rollout: Rollout, model: str, buffer: OverlongBufferSettings | None) -> float:
    """What the longest answer of the model adds to the reward: 0 at most. DAPO, equation 13.

    0 up to L_max - L_buffer tokens, from there falling by a straight line to -1 at L_max, times the factor.
    """
    if buffer is None:
        return 0.0
    longest = max((len(call.response_ids) // 4 for call in rollout.calls if call.model == model), default=0)
    excess = longest - (buffer.max_response_length - buffer.len)
    return -buffer.penalty_factor * min(max(excess / buffer.len, 0.0), 1.0)
