"""A step of the learner on one device: tokens a second, and its peak of memory beside the plan of the dry run."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Scale, Size
from benchmarks.results import Result
from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence
from lightningbus.run.preflight.memory_check import GIB, training_shape

LORA_RANK = 32
NEEDS_GPU = "needs a GPU"
SEEDS = (0, 1)
"""Seeds of two steps' rows, which have other lengths."""
WITH_PASS, UPDATE_ALONE = "behind a pass for log-probabilities", "update alone"
Peers = tuple[float | None, float | None]
"""verl's tokens a second and GiB."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to train."""

    title: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``engine`` that differ from the learner's defaults."""
    lora_rank: int = 0
    needs_gpu: bool = False
    needs_flash: bool = False
    tokens_factor: int = 1
    """Times the scale's tokens of a micro-batch."""


CASES = {
    "defaults": Case("the learner's defaults"),
    "sdpa": Case("attention by torch, row by row", {"attn_implementation": "sdpa"}),
    "flash": Case("flash-attention", {"attn_implementation": "flash_attention_2"}, needs_gpu=True, needs_flash=True),
    "kept": Case("without activation checkpointing", {"enable_gradient_checkpointing": False}),
    "wide": Case("micro-batches of four times the tokens", tokens_factor=4),
    "wide-kept": Case(
        "micro-batches of four times the tokens, without activation checkpointing",
        {"enable_gradient_checkpointing": False},
        tokens_factor=4,
    ),
    "padded": Case("padded rows", {"use_remove_padding": False}),
    "offloaded": Case("offload_policy", {"offload_policy": True}, needs_gpu=True),
    "lora": Case(f"LoRA of rank {LORA_RANK}", lora_rank=LORA_RANK),
}


def measure(context: Context, size: Size, case: str) -> None:
    """Speed and memory of one of `CASES`; where this machine cannot do it, the figure is None and says so."""
    import torch

    from lightningbus.learner.engine.verl_checks import has_flash_attention
    from lightningbus.learner.training.verl_trainer import VerlTrainer

    way, scale = CASES[case], context.scale
    title, on_gpu = f"{context.title(size)}, {way.title}", torch.cuda.is_available()
    if (way.needs_gpu and not on_gpu) or (way.needs_flash and not has_flash_attention()):
        why = NEEDS_GPU if not on_gpu else "flash-attn is not installed"
        context.report(Result(title, None, "tokens/s", note=why))
        return
    settings = make_settings(context, size, way)
    trainer = VerlTrainer(settings)
    batches = []
    for seed in SEEDS:
        sequences = make_sequences(scale, context.scale.shapes[size].fields["vocab_size"], seed)
        sampled = trainer.log_probs(sequences)
        rows = [replace(row, logprobs=logprobs) for row, logprobs in zip(sequences, sampled, strict=True)]
        batches.append(make_batch(rows))

    def step(number: int) -> str:
        metrics = trainer.step(batches[number])
        if not math.isfinite(metrics["actor/grad_norm"]):
            raise ValueError(f"the gradient's norm is {metrics['actor/grad_norm']}")
        return WITH_PASS if "rollout_corr/kl" in metrics else UPDATE_ALONE

    kinds = () if way.lora_rank else (WITH_PASS, UPDATE_ALONE)  # verl alone trains all weights
    peers = {kind: read_peers(context, size, place) for place, kind in enumerate(kinds)}
    counts = [count_tokens(batch.sequences) for batch in batches]
    report_step(context, title, step, counts, plan_bytes(context, size, settings), peers)


def read_peers(context: Context, size: Size, place: int) -> Peers:
    """What the step with verl alone reported, if it ran: of its first measurement, or of its second."""
    rate, memory = (context.read_value(f"verl-{size}", 3 * place + part) for part in (0, 1))
    return rate, memory


def make_settings(context: Context, size: Size, way: Case) -> LearnerSettings:
    """The learner's settings of a case."""
    scale = context.scale
    fields: dict[str, Any] = {
        "model_path": context.model(size),
        "seq_len": scale.row_tokens,
        "cpu_threads": scale.cpu_threads,
        "actor": {"ppo_max_token_len_per_gpu": way.tokens_factor * scale.max_tokens, "optim": {"lr": 1e-6}},
        "engine": {"check_model": False, **way.engine},  # a case has its computation; nothing else takes memory
        "lora": {"lora_rank": way.lora_rank},
    }
    return LearnerSettings.model_validate(fields)


def make_sequences(scale: Scale, vocabulary: int, seed: int = SEEDS[0]) -> list[TrainSequence]:
    """Rows of half to all of the longest length, the second half of each sampled. Pure."""
    rng = np.random.default_rng(seed)
    sequences = []
    for number in range(scale.num_rows):
        length = int(rng.integers(scale.row_tokens // 2, scale.row_tokens + 1)) if number else scale.row_tokens
        calls = np.where(np.arange(length) < length // 2, CONTEXT, 0)
        ids = rng.integers(10, vocabulary, length)
        versions = np.where(calls == CONTEXT, CONTEXT, 0)
        sequences.append(TrainSequence(f"r{number}", 1.0, ids, calls, np.zeros(length, np.float32), versions))
    return sequences


def make_batch(rows: Sequence[TrainSequence]) -> Batch:
    """Half of the rollouts better than the mean, half worse: no row is without a gradient. Pure."""
    advantages = {(row.rollout_id, 0): 1.0 if number % 2 else -1.0 for number, row in enumerate(rows)}
    return Batch(list(rows), advantages, num_tokens={row.rollout_id: row.num_tokens for row in rows})


def count_tokens(rows: Sequence[TrainSequence]) -> int:
    """Of all rows, prompts included. Pure."""
    return sum(len(row.token_ids) for row in rows)


def plan_bytes(context: Context, size: Size, settings: LearnerSettings) -> int:
    """The peak that ``--dry-run`` says of these settings on one device."""
    import torch
    from transformers import AutoConfig

    from lightningbus.learner.engine.memory_plan import plan_memory
    from lightningbus.learner.engine.model_shape import read_shape

    shape = read_shape(AutoConfig.from_pretrained(context.model(size)), settings.lora.target_modules)
    return plan_memory(shape, training_shape(settings, 1, torch.cuda.is_available())).peak


def report_step(
    context: Context,
    title: str,
    step: Callable[[int], str],
    num_tokens: Sequence[int],
    planned: int | None = None,
    peers: Mapping[str, Peers] | None = None,
) -> None:
    """Time the second of two steps on the same rows, report it with the peak of memory, and a step on new lengths.

    ``step`` takes the number of its rows, 0 or 1, and returns of which kind it was, if it has several. ``num_tokens``
    are those of either rows; ``planned`` is in bytes; ``peers`` are by kind.
    """

    def measure(number: int, case: str) -> str:
        started = time.monotonic()
        kind = step(number)
        seconds = time.monotonic() - started
        note = f"{num_tokens[number]:,} tokens in {seconds:.2f} s" + (f", {kind}" if kind else "")
        rate = (peers or {}).get(kind, (None, None))[0] if number == 0 else None
        context.report(Result(case, num_tokens[number] / seconds, "tokens/s", peer=rate, note=note))
        return kind

    step(0)  # allocates the optimiser's state, and compiles
    _reset_peak()
    kind = measure(0, title)
    memory = (peers or {}).get(kind, (None, None))[1]
    _report_peak(context, title, planned, memory)
    measure(1, f"{title}, rows of new lengths")


def _report_peak(context: Context, title: str, planned: int | None, memory: float | None) -> None:
    peak, allocated = _peak_bytes()
    plan = None if planned is None else planned / GIB
    if peak is None:
        note = NEEDS_GPU if plan is None else f"{NEEDS_GPU}; planned here: {plan:.3g} GiB"
        context.report(Result(f"{title}: memory", None, "GiB", note=note))
        return
    note = f"of torch's tensors {allocated / GIB:.1f}" + ("" if plan is None else "; beside it: the dry run's plan")
    context.report(Result(f"{title}: memory", peak / GIB, "GiB", plan, memory, note=note))


def _reset_peak() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes() -> tuple[int | None, int]:
    """The most that this process took of the GPU, with CUDA's own part, and the most of torch's tensors.

    torch knows the peak of what it reserved. What is in use beyond that now, CUDA and libraries took, and keep.
    """
    import torch

    if not torch.cuda.is_available():
        return None, 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return torch.cuda.max_memory_reserved() + others, torch.cuda.max_memory_allocated()
