"""Packed rows do not see each other, and no mask is made of all tokens by all tokens."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

from lightningbus.learner.engine import packed_attention
from lightningbus.learner.engine.last_result import LastResult
from lightningbus.learner.engine.packed_attention import register_packed_attention

LENGTHS = [40, 1, 2, 90, 7]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


class Largest(TorchDispatchMode):
    """The most elements that a tensor of truth values had."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        out = function(*arguments, **(named or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.bool:
            self.elements = max(self.elements, out.numel())
        return out


def models() -> dict[str, Any]:
    """One with full attention, one whose layers look back 16 tokens by turns."""
    torch.manual_seed(0)
    windows = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    return {
        "full": Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "sliding": Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **windows)),
    }


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_packed_rows_are_computed_as_each_alone(kind: str) -> None:
    model = models()[kind].eval()
    model.set_attn_implementation(register_packed_attention())
    rows = [torch.randint(64, (length,)) for length in LENGTHS]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with Largest() as seen:
        packed = model(input_ids=torch.cat(rows)[None], position_ids=positions, use_cache=False).logits[0]
    if kind == "full":
        assert seen.elements <= sum(LENGTHS)
    for part, row in zip(packed.split(LENGTHS), rows, strict=True):
        alone = model(input_ids=row[None], use_cache=False).logits[0]
        torch.testing.assert_close(part, alone, atol=1e-5, rtol=1e-4)


def test_layers_and_their_recomputation_ask_the_device_once_for_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each question waits for all that was queued before it."""
    reads: list[tuple[int, ...]] = []

    def read(position_ids: Any, lengths: tuple[int, ...]) -> tuple[int, ...]:
        reads.append(lengths)
        return packed_attention._read_first_positions(position_ids, lengths)

    monkeypatch.setattr(packed_attention, "_find_shared", LastResult(read))
    model = models()["full"].train()
    model.set_attn_implementation(register_packed_attention())
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for lengths in (LENGTHS, LENGTHS[::-1]):
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        ids = torch.randint(64, positions.shape)
        model(input_ids=ids, position_ids=positions, use_cache=False).logits.sum().backward()
    assert reads == [tuple(LENGTHS), tuple(LENGTHS[::-1])]


def test_a_last_result_is_of_the_same_unchanged_tensor_and_arguments() -> None:
    calls: list[int] = []
    last = LastResult(lambda tensor, factor: calls.append(factor) or int(tensor.sum()) * factor)  # type: ignore[func-returns-value]
    tensor = torch.ones(3)
    assert [last(tensor, 1), last(tensor, 1), last(tensor, 2)] == [3, 3, 6] and calls == [1, 2]
    tensor += 1
    assert last(tensor, 2) == 12 and last(torch.ones(3), 2) == 6
    del tensor
    assert last(torch.full((3,), 5.0), 2) == 30
