"""Causal attention over rows of any lengths in one call on a GPU, by torch's FlashAttention.

Row by row, a GPU waits for the host between small kernels. And cuDNN, which torch takes for single rows on newer GPUs,
builds a plan for each new length: rows of a training step always have new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

from lightningbus.learner.engine.last_result import LastResult

MAX_HEAD_SIZE = 256
CAUSAL = (-1, 0)
"""Window of all tokens before and none after."""


class RowBounds(NamedTuple):
    """Bounds of rows among queries, and among the keys that they see."""

    queries: Any
    """``int32[rows + 1]`` on the device."""
    keys: Any
    """``int32[rows + 1]`` on the device, among ``key_places`` or all keys."""
    longest_query: int
    longest_key: int
    key_places: Any
    """``int64[keys]`` on the device: which keys the rows see, one after another; None: each row its own tokens."""


def can_attend(module: Any, query: Any, named: Mapping[str, Any]) -> bool:
    """Return whether FlashAttention computes a layer: on a GPU in half precision, causal and without dropout."""
    import torch

    size = query.shape[-1]
    return (
        query.is_cuda
        and load_attention() is not None
        and _dtype(query) in (torch.bfloat16, torch.float16)
        and size % 8 == 0
        and size <= MAX_HEAD_SIZE
        and not named.get("dropout")
        and named.get("is_causal") is not False
        and getattr(module, "is_causal", True)
    )


@cache
def load_attention() -> Callable[..., Any] | None:
    """Load torch's attention over rows, with fewer heads of keys than of queries; None where torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    attend: Any = varlen_attn
    has_switch = "enable_gqa" in signature(attend).parameters  # versions without it always take fewer heads
    return partial(attend, enable_gqa=True) if has_switch else attend


def attend_to_rows(query: Any, key: Any, value: Any, lengths: Any, starts: Sequence[int], scaling: float | None) -> Any:
    """Attend within rows: ``[1, heads, tokens, size]`` each to ``[1, tokens, heads, size]``.

    ``lengths``: ``int64[rows]`` on the CPU. A row whose start p is above 0 also sees the first p tokens of the last row
    that started at 0.
    """
    bounds: RowBounds = _find_bounds(lengths, tuple(starts), query.device)
    dtype = _dtype(query)
    queries, keys, values = (part[0].transpose(0, 1).to(dtype) for part in (query, key, value))
    if bounds.key_places is not None:
        keys, values = keys[bounds.key_places], values[bounds.key_places]
    attend: Any = load_attention()
    attended: Any = attend(
        queries,
        keys,
        values,
        bounds.queries,
        bounds.keys,
        bounds.longest_query,
        bounds.longest_key,
        scale=scaling,
        window_size=CAUSAL,
    )
    return attended[None]


def _read_bounds(lengths: Any, starts: tuple[int, ...], device: Any) -> RowBounds:
    import torch

    sizes = lengths.tolist()
    num_seen = [size + start for size, start in zip(sizes, starts, strict=True)]

    def bound(counts: Sequence[int]) -> Any:
        ends = torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)
        return ends.to(device)

    places = None
    if any(starts):
        parts, begun, place = [], 0, 0
        for size, start in zip(sizes, starts, strict=True):
            begun = begun if start else place
            parts += [torch.arange(begun, begun + start), torch.arange(place, place + size)]
            place += size
        places = torch.cat(parts).to(device)
    return RowBounds(bound(sizes), bound(num_seen), max(sizes), max(num_seen), places)


_find_bounds = LastResult(_read_bounds)
"""Bounds of rows, copied to the device once for all layers of a forward pass and its recomputation."""


def _dtype(query: Any) -> Any:
    """Return the dtype in which torch's own attention would compute: that of autocast where it is on."""
    import torch

    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
