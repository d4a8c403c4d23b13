"""The one module that touches verl's training engine: FSDP2, its PPO loss, its rollout correction. One process."""

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner import platform
from learner.settings import LearnerSettings
from learner.transitions import Row
from learner.weighting import row_weights

log = logging.getLogger(__name__)


class Trainer:
    """A model, its optimiser, and one step of training; calls block, so run them in a thread."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings = settings
        device = platform.select()
        import torch
        from verl.trainer.config import CheckpointConfig
        from verl.workers.config import (
            FSDPActorConfig,
            FSDPEngineConfig,
            FSDPOptimizerConfig,
            HFModelConfig,
            PolicyLossConfig,
        )
        from verl.workers.engine import EngineRegistry

        self._torch = torch
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        _join_alone("nccl" if device == "cuda" else "gloo")
        actor, optim = settings.actor, settings.actor.optim
        precision = None if device == "cuda" else dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
        self._actor = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=settings.samples,
            use_dynamic_bsz=True,
            clip_ratio_low=actor.clip_ratio_low,
            clip_ratio_high=actor.clip_ratio_high,
            clip_ratio_c=actor.clip_ratio_c,
            # Rows carry their weight in their advantage (see `weighting`), so tokens are summed here.
            loss_agg_mode="token-sum",
            policy_loss=PolicyLossConfig(loss_mode=actor.policy_loss),
        )
        self._engine = EngineRegistry.new(
            model_type="language_model",
            backend="fsdp2",
            model_config=HFModelConfig(
                path=str(settings.model_path),
                use_remove_padding=False,
                enable_gradient_checkpointing=device == "cuda",
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                mixed_precision=precision,
                use_torch_compile=device == "cuda",
                use_remove_padding=False,
            ),
            optimizer_config=FSDPOptimizerConfig(
                lr=optim.lr,
                lr_scheduler_type=optim.lr_scheduler_type,
                min_lr_ratio=optim.min_lr_ratio,
                lr_warmup_steps=optim.lr_warmup_steps,
                total_training_steps=max(settings.steps, 1),
                weight_decay=optim.weight_decay,
                betas=optim.betas,
                clip_grad=optim.clip_grad,
            ),
            checkpoint_config=CheckpointConfig(),
        )
        self._engine.initialize()

    def step(self, rows: Sequence[Row], advantages: Sequence[float]) -> dict[str, float]:
        """One training step on rows with their advantages (one per row); returns metrics by name.

        ``actor/…`` and ``rollout_corr/…`` are verl's own.
        """
        batch = self._batch(rows, advantages)
        with self._engine.eval_mode():
            current = self._engine.infer_batch(batch.copy())["model_output"]["log_probs"]
        metrics = self._correct(batch, current, rows)
        from verl.workers.utils.losses import ppo_loss

        for _ in range(self._settings.actor.ppo_epochs):
            with self._engine.train_mode():
                out = self._engine.train_batch(batch.copy(), partial(ppo_loss, self._actor))
            metrics |= {name: _number(value) for name, value in out["metrics"].items()}
        metrics["actor/lr"] = float(self._engine.lr_scheduler_step())
        return metrics

    def log_probs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the response tokens under the current weights, ``float32[T]`` per row."""
        with self._engine.eval_mode():
            found = self._engine.infer_batch(self._batch(rows, [0.0] * len(rows)))["model_output"]["log_probs"]
        return [part.numpy() for part in self._responses(found, rows)]

    def weights(self) -> dict[str, Any]:
        """Every tensor under its Hugging Face name, on the CPU; tied weights once."""
        tied = bool(getattr(self._engine.model_config.hf_config, "tie_word_embeddings", False))
        params, _ = self._engine.get_per_tensor_param()
        return {
            name: tensor.detach().to("cpu").clone().contiguous()
            for name, tensor in params
            if not (tied and name == "lm_head.weight")
        }

    def save(self, path: Path) -> None:
        """Weights, optimiser, schedule and random state into a directory."""
        self._engine.save_checkpoint(str(path))

    def load(self, path: Path) -> None:
        """What `save` wrote."""
        self._engine.load_checkpoint(str(path), del_local_after_load=False)

    def _correct(self, batch: Any, current: Any, rows: Sequence[Row]) -> dict[str, float]:
        """Put the old log-probabilities and importance weights in; returns verl's mismatch metrics."""
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

        torch, rule = self._torch, self._settings.algorithm.rollout_correction
        sampled = batch["rollout_log_probs"]
        lengths = [row.tokens for row in rows]
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        now = self._padded(self._responses(current, rows))
        weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
            now,
            sampled.to_padded_tensor(0.0),
            mask.float(),
            rollout_is=rule.rollout_is,
            rollout_is_threshold=rule.rollout_is_threshold,
            rollout_rs=rule.rollout_rs,
            rollout_rs_threshold=rule.rollout_rs_threshold,
        )
        jagged = partial(self._jagged, lengths=lengths)
        batch["response_mask"] = jagged(kept.bool())
        if rule.bypass_mode:
            batch["old_log_probs"] = sampled
        else:
            batch["old_log_probs"] = jagged(now)
            if weights is not None:
                batch["rollout_is_weights"] = jagged(weights.batch["rollout_is_weights"])
        return {name: _number(value) for name, value in metrics.items()}

    def _batch(self, rows: Sequence[Row], advantages: Sequence[float]) -> Any:
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.dataset_utils import DatasetPadMode

        torch = self._torch
        weights = row_weights(rows, self._settings.actor.loss_agg_mode)
        nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
        prompts = [torch.from_numpy(row.prompt_ids) for row in rows]
        responses = [torch.from_numpy(row.response_ids) for row in rows]
        ones = [torch.ones(row.tokens) for row in rows]
        weighted = [o * a * w for o, a, w in zip(ones, advantages, weights, strict=True)]
        return tu.get_tensordict(
            {
                "input_ids": nested([torch.cat(pair) for pair in zip(prompts, responses, strict=True)]),
                "position_ids": nested([torch.arange(len(row.prompt_ids) + row.tokens) for row in rows]),
                "loss_mask": nested([torch.cat([torch.zeros(len(p)), o]) for p, o in zip(prompts, ones, strict=True)]),
                "prompts": nested(prompts),
                "responses": nested(responses),
                "response_mask": nested([o.bool() for o in ones]),
                "advantages": nested(weighted),
                "rollout_log_probs": nested([torch.from_numpy(row.logprobs.copy()) for row in rows]),
            },
            {
                "temperature": float(self._settings.sampling.get("temperature", 1.0)),
                "use_remove_padding": False,
                "pad_mode": DatasetPadMode.NO_PADDING,
                "use_dynamic_bsz": True,
                "max_token_len_per_gpu": self._settings.actor.ppo_max_token_len_per_gpu,
                "global_batch_size": len(rows),
                "calculate_entropy": False,
            },
        )

    def _responses(self, whole: Any, rows: Sequence[Row]) -> list[Any]:
        """The part of a per-token output that belongs to the response: it is predicted one token earlier."""
        return [
            part[len(row.prompt_ids) - 1 : len(row.prompt_ids) - 1 + row.tokens].detach().float().cpu()
            for part, row in zip(whole.unbind(), rows, strict=True)
        ]

    def _padded(self, parts: list[Any]) -> Any:
        return self._torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    def _jagged(self, padded: Any, lengths: list[int]) -> Any:
        parts = [line[:length].contiguous() for line, length in zip(padded, lengths, strict=True)]
        return self._torch.nested.as_nested_tensor(parts, layout=self._torch.jagged)


def _number(value: Any) -> float:
    """verl's metrics are numbers, lists of one per micro-batch, or its own aggregating type."""
    if hasattr(value, "aggregate"):
        value = value.aggregate()
    if isinstance(value, list | tuple):
        return float(np.mean([_number(one) for one in value])) if value else 0.0
    return float(value)


def _join_alone(backend: str) -> None:
    """A process group of one, unless a launcher such as torchrun has made one."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if "RANK" in os.environ:
        dist.init_process_group(backend=f"cpu:gloo,cuda:{backend}" if backend == "nccl" else backend)
        return
    with _rendezvous() as where:
        dist.init_process_group(backend=backend, init_method=where, rank=0, world_size=1)


@contextmanager
def _rendezvous() -> Iterator[str]:
    handle, name = tempfile.mkstemp(prefix="lightningbus-")
    os.close(handle)
    try:
        yield f"file://{name}"
    finally:
        Path(name).unlink(missing_ok=True)
