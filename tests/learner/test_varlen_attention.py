"""Rows of any lengths in one call attend as each row alone."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightningbus.learner.engine import packed_attention, varlen_attention

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="FlashAttention needs a GPU")


def attend_as_flash(
    query: Any,
    key: Any,
    value: Any,
    bounds: Any,
    key_bounds: Any,
    longest: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> Any:
    """FlashAttention's contract in plain torch: a causal mask whose last query sees the last key."""
    assert window_size == (-1, 0) and enable_gqa
    sizes, key_sizes = bounds.diff().tolist(), key_bounds.diff().tolist()
    assert (max(sizes), max(key_sizes)) == (longest, longest_key)
    parts = []
    for q, k, v in zip(query.split(sizes), key.split(key_sizes), value.split(key_sizes), strict=True):
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, -math.inf).softmax(-1), v))
    return torch.cat(parts)


def make_rows(seed: int, heads: int, kv_heads: int, size: int) -> tuple[list[Any], Any, Any]:
    """Queries, keys and values; lengths; positions, by which some rows go on from the beginning of an earlier one."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (7,), generator=random)
    starts = [0] * 7
    for row, begun in ((1, 0), (2, 0), (4, 3)) if seed % 2 else ():
        starts[row] = int(torch.randint(1, int(lengths[begun]) + 1, (), generator=random))
    positions = [torch.arange(start, start + int(length)) for start, length in zip(starts, lengths, strict=True)]
    shape = int(lengths.sum()), heads, size
    parts = [
        torch.randn(1, shape[0], count, size, generator=random).transpose(1, 2) for count in (heads, kv_heads, kv_heads)
    ]
    return parts, lengths, torch.cat(positions)[None]


def attend(parts: list[Any], lengths: Any, positions: Any) -> list[Any]:
    """The attention's output and its gradients."""
    leaves = [part.detach().clone().requires_grad_() for part in parts]
    heads, kv_heads, size = parts[0].shape[1], parts[1].shape[1], parts[0].shape[-1]
    module = SimpleNamespace(is_causal=True, training=True, num_key_value_groups=heads // kv_heads)
    out, _ = packed_attention.attend_by_row(
        module, *leaves, lengths, position_ids=positions, scaling=size**-0.5, dropout=0.0
    )
    (out * torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("seed", range(8))
def test_bounds_say_what_rows_see(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values and gradients as row by row, also for rows that share the beginning of an earlier one."""
    rows = make_rows(seed, heads=4, kv_heads=2, size=8)
    expected = attend(*rows)
    monkeypatch.setattr(packed_attention, "can_attend", lambda *_: True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_as_flash)
    varlen_attention.load_attention.cache_clear()
    try:
        for got, alone in zip(attend(*rows), expected, strict=True):
            torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-4)
    finally:
        varlen_attention.load_attention.cache_clear()


def test_a_cpu_attends_row_by_row() -> None:
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    assert not varlen_attention.can_attend(SimpleNamespace(is_causal=True), query, {})


@needs_gpu
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(14, 2, 64), (9, 3, 64), (8, 8, 128), (16, 1, 128)])
@pytest.mark.parametrize("seed", range(2))
def test_flash_attention_computes_rows_to_rounding(seed: int, heads: int, kv_heads: int, size: int) -> None:
    parts, lengths, positions = make_rows(seed, heads, kv_heads, size)
    half = [part.cuda().bfloat16() for part in parts]
    assert varlen_attention.can_attend(SimpleNamespace(is_causal=True), half[0], {"dropout": 0.0})
    exact = attend([part.float() for part in half], lengths, positions.cuda())
    for got, right in zip(attend(half, lengths, positions.cuda()), exact, strict=True):
        assert float((got.float() - right).abs().max() / right.abs().max()) < 0.02
