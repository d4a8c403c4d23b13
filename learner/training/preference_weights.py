"""Direct preference optimization: the weight of each answer in an update, from log-probabilities. Pure.

The loss of a pair is -log sigmoid(beta * delta), where delta is the gain of the better answer minus that of the worse,
and an answer's gain is log pi - log pi_ref, summed over its tokens (arXiv:2305.18290, equation 7). Its gradient is
-beta * sigmoid(-beta * delta) * (grad log pi(better) - grad log pi(worse)), as of a weighted sum of log-probabilities.
So no pair has to be computed together.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from lightningbus.learner.batching.pass_order import drop_pass
from lightningbus.learner.batching.preferences import Pair
from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import TrainSequence


def sum_log_probs(sequences: Sequence[TrainSequence], log_probs: Sequence[Floats]) -> dict[str, float]:
    """Return the log-probability of each answer in nats, by the id of its sequences: the sum over trained tokens."""
    sums: dict[str, float] = {}
    for row, values in zip(sequences, log_probs, strict=True):
        sums[row.rollout_id] = sums.get(row.rollout_id, 0.0) + float(values[row.trained].sum(dtype=np.float64))
    return sums


def weigh_pairs(
    pairs: Sequence[Pair], current: Mapping[str, float], reference: Mapping[str, float], beta: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each answer's weight for -log pi of its tokens, and metrics of the pairs, both by name.

    With P pairs the weight is beta * sigmoid(-beta * delta) / P for the better answer, and the negative of it for the
    worse. ``current`` and ``reference`` are from `sum_log_probs`; ids in ``reference`` have no mark of a pass.
    """
    gains = {
        name: current[name] - reference[drop_pass(name)] for pair in pairs for name in (pair.chosen, pair.rejected)
    }
    better = beta * np.array([gains[pair.chosen] for pair in pairs])
    worse = beta * np.array([gains[pair.rejected] for pair in pairs])
    margins = better - worse
    pulls = beta * np.exp(-np.logaddexp(0.0, margins)) / len(pairs)
    weights = dict[str, float]()
    for pair, pull in zip(pairs, pulls.tolist(), strict=True):
        weights |= {pair.chosen: pull, pair.rejected: -pull}
    return weights, {
        "actor/loss": float(np.logaddexp(0.0, -margins).mean()),
        "preference/accuracy": float((margins > 0).mean()),
        "preference/margin": float(margins.mean()),
        "preference/chosen_reward": float(better.mean()),
        "preference/rejected_reward": float(worse.mean()),
    }


def spread_weights(sequences: Sequence[TrainSequence], weights: Mapping[str, float]) -> list[Floats]:
    """Return each token's weight, one ``float32[N]`` per sequence: its answer's if it is trained, else 0."""
    return [row.trained * np.float32(weights[row.rollout_id]) for row in sequences]
