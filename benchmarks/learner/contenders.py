"""One optimiser step on the same rows in three ways. Each has the same loss, weights, optimiser and bound of tokens."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from benchmarks.learner.workload import BETAS, CLIP_GRAD, LEARNING_RATE, Row, Size
from lightningbus.learner.engine import cpu_platform

CLIP_LOW, CLIP_HIGH, CLIP_DUAL = 0.2, 0.28, 3.0


class HasTokens(Protocol):
    """A row of tokens."""

    @property
    def token_ids(self) -> Any: ...


AnyRow = TypeVar("AnyRow", bound=HasTokens)


class Contender(Protocol):
    """Made for a model directory, a size and rows."""

    def step(self) -> float:
        """One optimiser step; the norm of its gradient."""
        ...


class Ours:
    """The learner's trainer, called as the training loop calls it."""

    def __init__(
        self, path: Path, size: Size, rows: list[Row], log_prob_interval: int, share_prefixes: bool = True
    ) -> None:
        from lightningbus.learner.batching.batch import Batch
        from lightningbus.learner.settings.learner import LearnerSettings
        from lightningbus.learner.training.verl_trainer import VerlTrainer
        from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

        actor = {
            "optim": {"lr": LEARNING_RATE, "clip_grad": CLIP_GRAD},
            "ppo_max_token_len_per_gpu": size.max_tokens,
            "loss_agg_mode": "token-mean",
            "old_log_prob_interval": log_prob_interval,
        }
        settings = LearnerSettings.model_validate(
            {
                "model_path": path,
                "seq_len": size.longest,
                "actor": actor,
                "engine": {"check_model": False, "share_prefixes": share_prefixes},
                "verl": {"optim": {"betas": BETAS}},
            }
        )
        sequences = []
        for number, row in enumerate(rows):
            before, zeros = np.zeros(len(row.prompt), np.float32), np.zeros(len(row.token_ids), np.int64)
            calls = np.where(np.arange(len(zeros)) < len(before), CONTEXT, 0)
            sequences.append(
                TrainSequence(str(number), 1.0, row.token_ids, calls, np.concatenate([before, row.logprobs]), zeros)
            )
        self._batch = Batch(sequences, {(str(number), 0): row.advantage for number, row in enumerate(rows)})
        self._trainer = VerlTrainer(settings)

    def step(self) -> float:
        return self._trainer.step(self._batch)["actor/grad_norm"]


class BareVerl:
    """verl's FSDP engine and its own PPO loss on its own batch; of ours only the platform that CPUs need."""

    def __init__(self, path: Path, size: Size, rows: list[Row], has_defaults: bool) -> None:
        cpu_platform.select_platform()
        from verl.trainer.config import CheckpointConfig
        from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
        from verl.workers.engine import EngineRegistry
        from verl.workers.utils.losses import ppo_loss

        from lightningbus.learner.training.distributed import ProcessGroup

        ProcessGroup("cpu")
        model: dict[str, Any] = {} if has_defaults else {"enable_gradient_checkpointing": False}
        quick = {"use_torch_compile": False, "use_no_sync_for_gradient_accumulation": False}
        engine: dict[str, Any] = {} if has_defaults else quick
        self._engine: Any = EngineRegistry.new(
            model_type="language_model",
            backend="fsdp2",
            model_config=HFModelConfig(path=str(path), override_config={"attn_implementation": "sdpa"}, **model),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                mixed_precision=dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"),
                **engine,
            ),
            optimizer_config=FSDPOptimizerConfig(
                lr=LEARNING_RATE, betas=BETAS, clip_grad=CLIP_GRAD, weight_decay=0.0, total_training_steps=1000
            ),
            checkpoint_config=CheckpointConfig(),
        )
        self._engine.initialize()
        config = FSDPActorConfig(
            strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=CLIP_LOW, clip_ratio_high=CLIP_HIGH,
            clip_ratio_c=CLIP_DUAL, loss_agg_mode="token-mean",
        )  # fmt: skip
        self._loss = partial(ppo_loss, config)
        self._batch = _make_verl_batch(size, rows)

    def step(self) -> float:
        with self._engine.train_mode():
            metrics = self._engine.train_batch(self._batch.copy(), self._loss)["metrics"]
        return float(metrics["grad_norm"])


def _make_verl_batch(size: Size, rows: list[Row]) -> Any:
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    def nest(arrays: list[Any]) -> Any:
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    ones = [np.ones(len(row.response), np.float32) for row in rows]
    tensors = {
        "input_ids": nest([row.token_ids for row in rows]),
        "position_ids": nest([np.arange(len(row.token_ids)) for row in rows]),
        "loss_mask": nest([np.pad(part, (len(row.prompt), 0)) for row, part in zip(rows, ones, strict=True)]),
        "prompts": nest([row.prompt for row in rows]),
        "responses": nest([row.response for row in rows]),
        "response_mask": nest(ones),
        "old_log_probs": nest([row.logprobs for row in rows]),
        "advantages": nest([row.advantage * part for row, part in zip(rows, ones, strict=True)]),
    }
    others = {
        "use_remove_padding": True,
        "pad_mode": DatasetPadMode.NO_PADDING,
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": size.max_tokens,
        "global_batch_size": len(rows),
        "calculate_entropy": False,
        "temperature": 1.0,
    }
    return tu.get_tensordict(tensors, others)


class PlainTransformers:
    """A loop by hand: padded micro-batches of rows of like length, torch's cross-entropy, AdamW."""

    def __init__(self, path: Path, size: Size, rows: list[Row]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
        self._num_trained = sum(len(row.response) for row in rows)
        self._micro_batches = list(split_by_length(rows, size.max_tokens))

    def step(self) -> float:
        torch, padding = self._torch, -100
        self._optimizer.zero_grad()
        for rows in self._micro_batches:
            longest = max(len(row.token_ids) for row in rows)
            ids = torch.zeros(len(rows), longest, dtype=torch.long)
            labels, mask = torch.full_like(ids, padding), torch.zeros_like(ids)
            for place, row in enumerate(rows):
                count = len(row.token_ids)
                ids[place, :count], mask[place, :count] = torch.from_numpy(row.token_ids), 1
                labels[place, len(row.prompt) : count] = torch.from_numpy(row.response)
            logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            surprise = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=padding
            )
            advantages = torch.tensor([row.advantage for row in rows])[:, None]
            ((surprise * advantages).sum() / self._num_trained).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_GRAD)
        self._optimizer.step()
        return float(norm)


def split_by_length(rows: Iterable[AnyRow], max_tokens: int) -> Iterator[list[AnyRow]]:
    """Rows sorted by length, as many together as have no more tokens with their padding."""
    part: list[AnyRow] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if part and (len(part) + 1) * len(row.token_ids) > max_tokens:
            yield part
            part = []
        part.append(row)
    yield part


CONTENDERS = {
    "lightningbus": partial(Ours, log_prob_interval=10**6),
    "lightningbus, with the pass for metrics": partial(Ours, log_prob_interval=1),
    "verl, the same settings": partial(BareVerl, has_defaults=False),
    "verl, its defaults": partial(BareVerl, has_defaults=True),
    "transformers": PlainTransformers,
}
"""The first is what the others are compared with."""
GROUP_CONTENDERS = {
    "lightningbus": CONTENDERS["lightningbus"],
    "lightningbus, each prompt anew": partial(Ours, log_prob_interval=10**6, share_prefixes=False),
    "verl, the same settings": CONTENDERS["verl, the same settings"],
    "transformers": CONTENDERS["transformers"],
}
"""Those that rows of common prompts go to."""


def find_contenders(size: Size) -> dict[str, Any]:
    """Return the functions that make the contenders on rows of a size, by name."""
    return GROUP_CONTENDERS if size.group_size > 1 else CONTENDERS
