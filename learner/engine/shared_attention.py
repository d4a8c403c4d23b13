"""Attention where ranks share sequences (Ulysses, arXiv:2309.14509), by torch's own kernels.

Each rank has some tokens of all heads. Ranks exchange these for all tokens of some heads, attend row by row, and
exchange back. verl does so for flash-attention alone, by a patch of it.
"""

from typing import Any

from lightningbus.learner.engine.last_result import LastResult

SHARED_SDPA = "shared_sdpa"


def register_shared_attention() -> str:
    """Make the attention known to transformers; returns the name that models ask for it by."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(SHARED_SDPA, attend_across_ranks)
    AttentionMaskInterface.register(SHARED_SDPA, make_no_mask)
    return SHARED_SDPA


def make_no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: rows are separated by their positions, and transformers would see only a rank's tokens."""


def attend_across_ranks(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *, position_ids: Any, **named: Any
) -> Any:
    """Compute full causal attention of this rank's tokens, ``[1, tokens, heads, size]``.

    From ``[1, heads, tokens, size]`` each. ``position_ids``, ``int64[1, tokens]``, begin at 0 in each row. Every rank
    that shares the sequences must call this, with as many tokens. The heads are a multiple of those ranks.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from verl.utils.ulysses import gather_heads_scatter_seq, gather_seq_scatter_heads

    groups = query.shape[1] // key.shape[1]  # heads of keys may be fewer than ranks
    parts = (query, key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1))
    lengths = _measure_rows(position_ids)
    rows = zip(*(torch.split(gather_seq_scatter_heads(part, 2, 1), lengths, dim=2) for part in parts), strict=True)
    dropout, scale = named.get("dropout", 0.0), named.get("scaling")
    attended = [
        scaled_dot_product_attention(queries, keys, values, is_causal=True, dropout_p=dropout, scale=scale)
        for queries, keys, values in rows
    ]
    return gather_heads_scatter_seq(torch.cat(attended, dim=2).transpose(1, 2), 2, 1).contiguous(), None


def _gather_rows(position_ids: Any) -> list[int]:
    """Measure the rows of all ranks that share them."""
    from verl.utils.ulysses import all_gather_tensor

    return measure_rows(all_gather_tensor(position_ids.flatten()))


_measure_rows = LastResult(_gather_rows)
"""Lengths, gathered once for all layers of a forward pass and its recomputation."""


def measure_rows(positions: Any) -> list[int]:
    """Measure the lengths of packed rows, from ``int64[tokens]``."""
    starts = positions.eq(0).nonzero().flatten().tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], len(positions)], strict=True)]
