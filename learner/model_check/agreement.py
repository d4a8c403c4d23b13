"""The distance between two computations of the same tokens, and what explains it. Pure."""

from collections.abc import Sequence

import numpy as np

from lightningbus.learner.trainer import Floats

MAX_DIFFERENCE = 1e-4
"""Mean distance of log-probabilities in float32, in nats per token, that the order of operations explains.

Right computations of tiny models of fifty families are below 3e-6, wrong ones above 1e-4.
"""
ROUNDING_FACTOR = 4.0
"""Distance allowed to a computation in 16 bits, in multiples of what rounding the reference to bfloat16 makes."""
FLOAT32_FACTOR = 0.2
"""Distance allowed to an engine in float32, in the same multiples.

An engine may compute a part of a model more coarsely than float32: TF32 on GPUs has 3 bits more than bfloat16, an
eighth of its rounding, and one activation of vLLM is in bfloat16 always (0.17 in Apertus).
"""


def mean_difference(left: Sequence[Floats], right: Sequence[Floats]) -> float:
    """Return the mean distance of log-probabilities, in nats per token; infinite if one is not finite.

    Both have one ``float32[N]`` per row, whose first value does not count.
    """
    pairs = zip(left, right, strict=True)
    distance = np.concatenate([np.abs(values[1:].astype(np.float64) - others[1:]) for values, others in pairs])
    return float(distance.mean()) if np.isfinite(distance).all() else float("inf")


def find_tolerance(rounding: float, *, is_float32: bool) -> float:
    """Return the largest mean difference to the reference, in nats per token, that is no fault.

    ``rounding``: the mean difference that bfloat16 makes to the reference.
    """
    return MAX_DIFFERENCE if is_float32 else max(MAX_DIFFERENCE, ROUNDING_FACTOR * rounding)


def find_engine_tolerance(rounding: float) -> float:
    """Return `find_tolerance` of an inference engine that computes in float32."""
    return max(MAX_DIFFERENCE, FLOAT32_FACTOR * rounding)
