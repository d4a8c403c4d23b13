"""The weight of each token in the loss: a rollout counts the same however many sequences it became. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lightningbus.learner.transitions.sequences import TrainSequence

FROM_SEQUENCES: Mapping[str, int] = MappingProxyType({})


def loss_weights(
    sequences: Sequence[TrainSequence], loss_agg_mode: str, num_tokens: Mapping[str, int] = FROM_SEQUENCES
) -> list[float]:
    """Return a factor for each sequence's token losses; modes are verl's, with a *rollout* as the sequence.

    With R rollouts, T tokens in all and T_r in the sequence's rollout: ``seq-mean-token-mean`` 1/(R T_r),
    ``seq-mean-token-sum`` 1/R, ``token-mean`` 1/T. ``num_tokens`` is T_r by rollout, so that masked tokens count and do
    not raise the weight of the others; for a rollout that it lacks, its trained tokens count.
    """
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
