"""The temperature by which two computations of log-probabilities differ: such a fault hides below rounding. Pure."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

MAX_TEMPERATURE_ERROR = 0.005
"""Difference of two temperatures, as a share of them, that does not matter."""
MAX_DEVIATIONS = 5.0
"""Standard errors of such a difference that rounding explains: more are seen once in a million right computations."""
MAX_SHRINKING = 2.0
"""Scale that errors explain, in shares of their variance: a norm divides by more where errors are in it, so all else
shrinks. Tiny models of Gemma-4 shrink by 0.5 to 1.7 such shares in bfloat16."""

Floats = NDArray[np.float64]


def find_temperature_error(differences: Floats, logprobs: Floats, token_ids: NDArray[np.uint32]) -> float:
    """Return the share by which a computation scales log-probabilities; 0 where rounding explains it.

    ``differences``: to the right computation's ``logprobs``, ``float64[N]`` both; ``token_ids``: the N tokens. This is
    the slope of a least-squares line, since the errors of rounding do not depend on the log-probability. Its standard
    error lets the errors at one token be alike, and a few tokens far from all others explain little (the jackknife over
    clusters of Bell and McCaffrey 2002, with tokens as clusters). Errors that are large beside the spread of the
    log-probabilities scale them too.
    """
    x, y = logprobs - logprobs.mean(), differences - differences.mean()
    spread = float(x @ x)
    if not spread:
        return 0.0
    slope = float(x @ y) / spread
    kinds = np.unique(token_ids, return_inverse=True)[1]
    leverage = np.bincount(kinds) / len(x) + np.bincount(kinds, x * x) / spread
    rest = y - slope * x
    by_token = np.bincount(kinds, rest * x) / np.maximum(1 - leverage, 1e-9)
    error = sqrt(float(by_token @ by_token)) / spread
    explained = (MAX_TEMPERATURE_ERROR, MAX_DEVIATIONS * error, MAX_SHRINKING * float(rest @ rest) / spread)
    is_explained = abs(slope) <= max(explained)
    return 0.0 if is_explained else slope


def describe_temperature_error(share: float) -> str:
    """Describe the share that `find_temperature_error` found; empty for 0."""
    return f"are scaled by {1 + share:.4g}" if share else ""
