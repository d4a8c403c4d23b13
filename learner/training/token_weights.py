"""The weight of each row's tokens in the loss: a rollout counts the same however many rows it became. Pure."""

from collections.abc import Sequence

from learner.batching.sequences import Row


def row_weights(rows: Sequence[Row], loss_agg_mode: str) -> list[float]:
    """Factor for each row's token losses; verl's modes, with a *rollout* as the sequence.

    With R rollouts, T tokens in all and T_r in the row's rollout: ``seq-mean-token-mean`` 1/(R T_r),
    ``seq-mean-token-sum`` 1/R, ``token-mean`` 1/T.
    """
    tokens: dict[str, int] = {}
    for row in rows:
        tokens[row.rollout] = tokens.get(row.rollout, 0) + row.tokens
    if loss_agg_mode == "token-mean":
        return [1.0 / sum(tokens.values())] * len(rows)
    if loss_agg_mode == "seq-mean-token-sum":
        return [1.0 / len(tokens)] * len(rows)
    if loss_agg_mode == "seq-mean-token-mean":
        return [1.0 / (len(tokens) * tokens[row.rollout]) for row in rows]
    raise ValueError(f"loss_agg_mode {loss_agg_mode!r} is not known")
