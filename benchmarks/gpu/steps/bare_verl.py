"""The same step by verl's own engine and loss, with verl's defaults: what the learner is compared with.

Without flash-attention verl computes log-probabilities token by token. There its fused kernels are taken, by torch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Scale, Size
from benchmarks.gpu.training import SEEDS, count_tokens, make_sequences, report_step
from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.engine.verl_checks import has_flash_attention
from lightningbus.learner.training.distributed import ProcessGroup
from lightningbus.learner.training.tensors import ForwardConfig, TokenInputs
from lightningbus.learner.transitions.sequences import TrainSequence


def measure(context: Context, size: Size) -> None:
    """A PPO update, behind a pass for log-probabilities and entropy on the same rows and without one: speed, memory."""
    device = cpu_platform.select_platform()
    import torch
    from verl.utils import tensordict_utils as tu

    scale = context.scale
    if scale.cpu_threads is not None:
        torch.set_num_threads(scale.cpu_threads)
    ProcessGroup(device)
    is_fused = not (device == "cuda" and has_flash_attention())
    engine = _make_engine(str(context.model(size)), device, is_fused)
    rows = [make_sequences(scale, scale.shapes[size].fields["vocab_size"], seed) for seed in SEEDS]

    def to_tensors(number: int, *, entropy: bool) -> Any:
        data = TokenInputs(rows[number], {}).to_tensordict(ForwardConfig(scale.max_tokens, entropy=entropy))
        tu.assign_non_tensor(data, use_fused_kernels=is_fused)
        return data

    def infer(number: int) -> Any:
        with engine.eval_mode():
            return engine.infer_batch(to_tensors(number, entropy=True))["model_output"]["log_probs"]

    def update(number: int, log_probs: Any) -> str:
        data = to_tensors(number, entropy=False)
        _add_ppo_fields(data, rows[number], log_probs)
        with engine.train_mode():
            engine.train_batch(data, _make_loss(scale))
        return ""

    way = "sdpa and fused kernels" if is_fused else "flash-attention"
    title, counts = f"{context.title(size)}, verl alone with {way}", [count_tokens(each) for each in rows]
    report_step(context, title, lambda number: update(number, infer(number)), counts)
    sampled = [infer(number) for number in range(len(rows))]
    report_step(context, f"{title}, update alone", lambda number: update(number, sampled[number]), counts)


def _make_engine(model: str, device: str, is_fused: bool) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    on_gpu = device == "cuda"
    in_float32 = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(
            path=model,
            use_remove_padding=True,
            enable_gradient_checkpointing=on_gpu,  # as the learner does it
            use_fused_kernels=is_fused,
            fused_kernel_options={"impl_backend": "torch"},
            override_config={"attn_implementation": "sdpa" if is_fused else "flash_attention_2"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", mixed_precision=None if on_gpu else in_float32, use_torch_compile=on_gpu
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-6, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def _add_ppo_fields(data: Any, rows: Sequence[TrainSequence], log_probs: Any) -> None:
    """What verl's trainer gives its PPO loss: prompts and responses apart, and a value for each response token."""
    import torch

    def nest(parts: Sequence[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.as_tensor(part) for part in parts], layout=torch.jagged)

    ids, trained = [row.token_ids for row in rows], [row.trained for row in rows]
    data["prompts"] = nest([part[~mask] for part, mask in zip(ids, trained, strict=True)])
    data["responses"] = nest([part[mask] for part, mask in zip(ids, trained, strict=True)])
    lengths = [row.num_tokens for row in rows]
    data["response_mask"] = nest([np.ones(length, np.float32) for length in lengths])
    signs = [1.0 if number % 2 else -1.0 for number in range(len(rows))]
    data["advantages"] = nest([np.full(length, sign, np.float32) for length, sign in zip(lengths, signs, strict=True)])
    # The model predicts a token at the position before it.
    values = [part[-length - 1 : -1].float().cpu() for part, length in zip(log_probs.unbind(), lengths, strict=True)]
    data["old_log_probs"] = nest(values)


def _make_loss(scale: Scale) -> Any:
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss

    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, ppo_max_token_len_per_gpu=scale.max_tokens
    )
    return partial(ppo_loss, config)
