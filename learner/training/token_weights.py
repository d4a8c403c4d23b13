"""Parts of a loss, and the weight of each token in each: a rollout counts the same however it was cut. Pure.

A training step learns from rewards (`RL`), from calls that it imitates (`CE`) and from a teacher's probabilities
(`KL`). A part has tokens, weights and a denominator of its own. A token may be in several parts.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lightningbus.learner.batching.batch import Batch, spread_over_tokens
from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.sequences import TrainSequence

RL, CE, KL = "weights", "ce_weights", "kl_weights"
"""Fields with a token's weight in each part."""
PREFERENCE = "preference_weights"
"""Field with a token's weight in the part of pairs, which has no mean over tokens."""
PARTS = (RL, CE, KL)
FROM_SEQUENCES: Mapping[str, int] = MappingProxyType({})


def find_part_factors(batch: Batch) -> dict[str, list[Floats]]:
    """Return each token's factor in each part, one ``float32[N]`` per sequence: 0 if the part does not train it.

    `CE` and `KL` are absent where they train nothing. A teacher scores rollouts alone, whose tokens a policy sampled.
    """
    sampled = dict.fromkeys(batch.advantages, 1.0)
    factors = {RL: [spread_over_tokens(sequence, sampled) for sequence in batch.sequences]}
    if batch.imitated:
        factors[CE] = [spread_over_tokens(sequence, batch.imitated) for sequence in batch.sequences]
    scored = [
        np.zeros_like(factor) if sequence.teacher_scores is None else factor * sequence.teacher_scores.is_scored
        for sequence, factor in zip(batch.sequences, factors[RL], strict=True)
    ]
    return factors | ({KL: scored} if any(factor.any() for factor in scored) else {})


def weigh_parts(
    sequences: Sequence[TrainSequence],
    factors: Mapping[str, Sequence[Floats]],
    loss_agg_mode: str,
    num_tokens: Mapping[str, int],
) -> dict[str, list[Floats]]:
    """Return the weight of each token in the loss of each part, from its factors there.

    ``num_tokens``: see `loss_weights`; it is of rollouts, so other parts count their own tokens.
    """
    weights = {}
    for part in (part for part in PARTS if part in factors):
        rows = [row.restrict(factor != 0) for row, factor in zip(sequences, factors[part], strict=True)]
        members = [place for place, row in enumerate(rows) if row.num_tokens]
        counts = num_tokens if part == RL else FROM_SEQUENCES
        shares = loss_weights([rows[place] for place in members], loss_agg_mode, counts)
        by_place = dict(zip(members, shares, strict=True))
        weights[part] = [np.float32(by_place.get(place, 0.0)) * factor for place, factor in enumerate(factors[part])]
    return weights


def loss_weights(
    sequences: Sequence[TrainSequence], loss_agg_mode: str, num_tokens: Mapping[str, int] = FROM_SEQUENCES
) -> list[float]:
    """Return a factor for each sequence's token losses; modes are verl's, with a *rollout* as the sequence.

    With R rollouts, T tokens in all and T_r in the sequence's rollout: ``seq-mean-token-mean`` 1/(R T_r),
    ``seq-mean-token-sum`` 1/R, ``token-mean`` 1/T. ``num_tokens`` is T_r by rollout, so that masked tokens count and do
    not raise the weight of the others; for a rollout that it lacks, its trained tokens count.
    """
    if not sequences:
        return []
    tokens: dict[str, int] = {}
    for sequence in sequences:
        tokens[sequence.rollout_id] = tokens.get(sequence.rollout_id, 0) + sequence.num_tokens
    tokens = {rollout_id: num_tokens.get(rollout_id, count) for rollout_id, count in tokens.items()}
    if loss_agg_mode == "token-mean":
        return [1.0 / sum(tokens.values())] * len(sequences)
    if loss_agg_mode == "seq-mean-token-sum":
        return [1.0 / len(tokens)] * len(sequences)
    if loss_agg_mode == "seq-mean-token-mean":
        return [1.0 / (len(tokens) * tokens[sequence.rollout_id]) for sequence in sequences]
    raise ValueError(f"loss_agg_mode {loss_agg_mode!r} is not known")


def select_tokens(data: Any, part: str) -> tuple[Any, Any]:
    """Return the positions in a micro-batch of a part's tokens, and their weights, times the number of ranks."""
    weights = data[part].values()
    (positions,) = weights.nonzero(as_tuple=True)
    return positions, weights[positions] * data["dp_size"]
