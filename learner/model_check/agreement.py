"""The distance between two computations of the same tokens, and what explains it. Pure."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import TrainSequence
from lightningbus.schemas.weights.temperature import describe_temperature_error, find_temperature_error

MAX_DIFFERENCE = 1e-4
"""Mean distance of log-probabilities in float32, in nats per token, that the order of operations explains.

Right computations of tiny models of fifty families are below 3e-6, wrong ones above 1e-4.
"""
ROUNDING_FACTOR = 1.5
"""Distance allowed to a computation in 16 bits, in multiples of what rounding the reference to bfloat16 makes."""
FLOAT32_FACTOR = 0.2
"""Distance allowed to an engine in float32, in the same multiples.

An engine may compute a part of a model more coarsely than float32: TF32 on GPUs has 3 bits more than bfloat16, an
eighth of its rounding, and one activation of vLLM is in bfloat16 always (0.17 in Apertus).
"""


def average_rows(values: Sequence[float], rows: Sequence[TrainSequence]) -> float:
    """Return the mean per token of a mean for each row; the first token of a row does not count."""
    return float(np.average(values, weights=[len(row.token_ids) - 1 for row in rows]))


def mean_difference(left: Sequence[Floats], right: Sequence[Floats]) -> float:
    """Return the mean distance of log-probabilities, in nats per token; infinite if one is not finite.

    Both have one ``float32[N]`` per row, whose first value does not count.
    """
    pairs = zip(left, right, strict=True)
    distance = np.concatenate([np.abs(values[1:].astype(np.float64) - others[1:]) for values, others in pairs])
    return float(distance.mean()) if np.isfinite(distance).all() else float("inf")


def find_tolerance(rounding: float, num_rounded: int) -> float:
    """Return the largest mean difference of two computations, in nats per token, that is not a fault.

    ``rounding``: the mean difference that bfloat16 makes to the reference; ``num_rounded``: how many of the two
    computations are in 16 bits, whose errors are independent.
    """
    return max(MAX_DIFFERENCE, ROUNDING_FACTOR * sqrt(num_rounded) * rounding)


def find_log_prob_fault(
    left: Sequence[Floats], right: Sequence[Floats], rows: Sequence[TrainSequence], bound: float
) -> str:
    """Describe how a computation differs from the right one beyond a mean difference in nats per token; empty: nowise.

    Both have one ``float32[N]`` per row, whose first value does not count.
    """
    difference = mean_difference(left, right)
    if difference > bound:
        return f"differ by {difference:.3g} nats per token, where rounding explains {bound:.3g}"
    values, others = (np.concatenate([row[1:] for row in part]).astype(np.float64) for part in (left, right))
    token_ids = np.concatenate([row.token_ids[1:] for row in rows])
    return describe_temperature_error(find_temperature_error(values - others, others, token_ids))


def find_engine_tolerance(rounding: float) -> float:
    """Return `find_tolerance` of an inference engine that computes in float32, beside a float32 computation."""
    return max(MAX_DIFFERENCE, FLOAT32_FACTOR * rounding)
