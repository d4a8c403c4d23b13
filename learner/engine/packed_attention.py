"""Attention over packed rows by torch's own kernels: without a mask of all tokens by all tokens.

transformers builds such a mask for packed rows. It takes the square of a micro-batch's tokens, in memory and in time.
Here full causal attention is computed for all rows at once by `varlen_attention` where a GPU can, else row by row.
Other kinds keep their masks.
"""

from typing import Any

from lightningbus.learner.engine.last_result import LastResult
from lightningbus.learner.engine.varlen_attention import attend_to_rows, can_attend

PACKED_SDPA = "packed_sdpa"


def register_packed_attention() -> str:
    """Make the attention known to transformers; returns the name that models ask for it by."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED_SDPA, attend_by_row)
    AttentionMaskInterface.register(PACKED_SDPA, find_rows)
    return PACKED_SDPA


def find_rows(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *arguments: Any,
    attention_mask: Any = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    **named: Any,
) -> Any:
    """Return the lengths of packed rows, ``int64[rows]`` on the CPU, in place of a mask; else the mask of ``sdpa``.

    transformers describes rows by a function that decides whether one token may see another.
    """
    import torch
    from transformers.masking_utils import sdpa_mask

    make_mask: Any = sdpa_mask
    is_packed = batch_size == 1 and q_length == kv_length and attention_mask is None and not allow_is_causal_skip
    if not is_packed or local_size is not None or use_vmap:
        return make_mask(
            batch_size,
            q_length,
            kv_length,
            *arguments,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            use_vmap=use_vmap,
            **named,
        )
    tokens = torch.arange(1, q_length, device=named["device"])
    first = torch.zeros_like(tokens)
    sees_previous = named["mask_function"](first, first, tokens, tokens - 1)
    starts = torch.cat([first[:1], tokens[~sees_previous], tokens.new_tensor([q_length])])
    return starts.diff().cpu()


def attend_by_row(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *, position_ids: Any = None, **named: Any
) -> Any:
    """Attend as transformers' ``sdpa``, ``[1, heads, tokens, size]`` each, separately for every row of `find_rows`.

    A row whose first position p is above 0 also sees the first p tokens of the last row that began at 0.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attend: Any = sdpa_attention_forward
    if attention_mask is None or attention_mask.dim() != 1:
        return attend(module, query, key, value, attention_mask, position_ids=position_ids, **named)
    lengths = tuple(attention_mask.tolist())
    starts = (0,) * len(lengths) if position_ids is None else _find_shared(position_ids, lengths)
    if can_attend(module, query, named):
        return attend_to_rows(query, key, value, attention_mask, starts, named.get("scaling")), None
    attended = []
    begun: tuple[Any, Any] = key, value
    rows = zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
    for (queries, keys, values), shared in zip(rows, starts, strict=True):
        if not shared:
            begun = keys, values
            attended.append(attend(module, queries, keys, values, None, **named)[0])
            continue
        keys, values = (
            torch.cat([first[:, :, :shared], later], dim=2) for first, later in zip(begun, (keys, values), strict=True)
        )
        mask = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool, device=queries.device).tril(shared)
        attended.append(attend(module, queries, keys, values, mask[None, None], **named)[0])
    return torch.cat(attended, dim=1), None


def _read_first_positions(position_ids: Any, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Read the first position of each row; a model with several kinds of positions begins all alike."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return tuple(position_ids.reshape(-1, position_ids.shape[-1])[0, starts].tolist())


_find_shared = LastResult(_read_first_positions)
"""First positions, read from the device once for all layers of a forward pass and its recomputation."""
