"""Repetition at the end of an answer, into which a policy degenerates. Pure."""

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD, MIN_REPEATS, MIN_TOKENS = 32, 4, 32
"""Longest repeated part in tokens, and the times and tokens that the repetition must go on for."""


def is_repeating(token_ids: NDArray[np.int64]) -> bool:
    """Return whether an answer, ``int64[T]``, ends in the same few tokens again and again."""
    for period in range(1, MAX_PERIOD + 1):
        length = max(MIN_REPEATS * period, MIN_TOKENS)
        if length > len(token_ids):
            return False
        end = token_ids[-length:]
        if np.array_equal(end[period:], end[:-period]):
            return True
    return False
