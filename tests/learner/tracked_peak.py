"""Small models, and what torch's tracker of FSDP2 says of their memory in a training step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from verl.utils.fsdp_utils import _select_fsdp2_wrap_targets

from lightningbus.learner.engine.packed_attention import register_packed_attention
from lightningbus.learner.engine.token_log_probs import log_probs_from_logits

TOKENS, ROW = 256, 64
SMALL = {
    "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
CONFIGS = {
    "qwen2, tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "llama, GQA": LlamaConfig(**{**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": False}),
    "qwen3": Qwen3Config(**SMALL),
    "four experts": Qwen3MoeConfig(
        **SMALL, moe_intermediate_size=160, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False
    ),
}


def build(config: Any, checkpointing: bool) -> Any:
    model = AutoModelForCausalLM.from_config(config, attn_implementation=register_packed_attention())
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def forward(model: Any, is_packed: bool = True) -> Any:
    """Logits of four rows of which one is a little shorter, without padding or with it."""
    if is_packed:
        positions = torch.cat([torch.arange(ROW)] * (TOKENS // ROW))[None]
        return model(torch.ones_like(positions), position_ids=positions, use_cache=False).logits
    ids = torch.ones(TOKENS // ROW, ROW, dtype=torch.int64)
    mask = ids.clone()
    mask[0, -3:] = 0
    return model(ids, attention_mask=mask, use_cache=False).logits


@contextmanager
def ranks(count: int) -> Iterator[Any]:
    """The first of so many ranks, whose collectives do nothing: memory is as if the others were there."""
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def shard(model: Any, mesh: Any) -> Any:
    """As verl does: layers, and embeddings that are not tied."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
    for module in _select_fsdp2_wrap_targets(model, list(model._no_split_modules)):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def tracked_peak(name: str, count: int, checkpointing: bool, num_micro_batches: int = 1, defer: bool = False) -> int:
    """Bytes at the peak of a second training step, for a process that is in no other group of ranks."""
    with ranks(count) as mesh:
        model = shard(build(CONFIGS[name], checkpointing), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step() -> None:
            for number in range(num_micro_batches):
                tracker.reset_mod_stats()  # those of each module, of which it takes one pass
                model.set_requires_gradient_sync(not defer or number == num_micro_batches - 1)
                logits = forward(model).squeeze(0)
                logits = logits / torch.ones(TOKENS, 1, dtype=logits.dtype)  # by temperature, as verl does
                loss = log_probs_from_logits(logits, torch.ones(TOKENS, dtype=torch.int64)).sum()
                del logits
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        tracker = FSDPMemTracker(model, optimizer)
        with tracker:
            step()
            step()
        return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())
