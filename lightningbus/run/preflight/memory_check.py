"""Estimate of a GPU's memory and time for training, from the model's shape, before the first step."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.batching.advantages import GAE
from lightningbus.learner.engine.memory_advice import advise, find_faster, step_flops
from lightningbus.learner.engine.memory_plan import (
    OVERHEAD_BYTES,
    MemoryPlan,
    ModelShape,
    TrainingShape,
    host_bytes,
    plan_memory,
)
from lightningbus.learner.engine.number_formats import choose_formats
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.correction import needs_log_probs
from lightningbus.run.errors import UserError
from lightningbus.schemas.text import shorten_line
from lightningbus.schemas.weights.dtypes import Dtype

GIB = 2**30
BYTES: Mapping[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
VLLM_SHARE = 0.92
"""Default of vLLM's --gpu-memory-utilization."""


@dataclass(frozen=True, slots=True)
class Target:
    """Machine that training is planned for; fields left out are read from this machine."""

    num_ranks: int = 1
    gpu_memory_gib: float | None = None
    gpu_tflops: float | None = None


def check_memory(learner: LearnerSettings, nodes: Sequence[InferenceSettings], target: Target) -> Iterator[str]:
    """Yield the lines of the memory plan and, if it does not fit, the settings to change.

    It is one line where it fits and there is no GPU. ``nodes`` are those on the learner's first GPU. Raises `UserError`
    if the directory holds no model.
    """
    from transformers import AutoConfig

    from lightningbus.learner.engine.model_shape import read_shape

    try:
        config = AutoConfig.from_pretrained(learner.model_path, local_files_only=True)
        model = read_shape(config, learner.lora.target_modules)
    except (OSError, ValueError) as error:
        raise UserError(f"{learner.model_path} holds no model: {shorten_line(str(error), 200)}") from error
    has_gpu, capacity = _capacity(target)
    how = training_shape(learner, target.num_ranks, has_gpu)
    share = sum(_engine_bytes(node, model, has_gpu, capacity) for node in nodes)
    peak = plan_memory(model, how, share).peak
    if not has_gpu and peak <= capacity:
        yield f"{learner.model}: training takes about {peak / GIB:.1f} of {capacity / GIB:.1f} GiB of memory"
        return
    yield from describe(learner.model, model, how, capacity, share)
    yield describe_time(learner, model, how, _measured_tflops(target, has_gpu))


def training_shape(learner: LearnerSettings, num_ranks: int, has_gpu: bool) -> TrainingShape:
    """Return the figures of a learner with ``num_ranks`` ranks that its memory and time depend on."""
    engine, lora_rank = learner.engine, learner.lora.lora_rank
    formats = choose_formats(learner, "cuda" if has_gpu else "cpu")
    param_bytes = BYTES[engine.model_dtype]
    return TrainingShape(
        num_ranks=num_ranks,
        tokens=learner.actor.ppo_max_token_len_per_gpu,
        row_tokens=learner.seq_len,
        shard_ranks=max(0, engine.fsdp_size),
        ulysses_ranks=engine.ulysses_sequence_parallel_size,
        use_remove_padding=engine.use_remove_padding is not False,
        checkpointing=engine.is_checkpointing(has_gpu),
        offload_policy=engine.offload_policy,
        param_bytes=param_bytes,
        compute_bytes=BYTES[formats.computation],
        optimizer_bytes=_optimizer_bytes(learner.verl.optimizer.name, param_bytes),
        has_foreach_optimizer=has_gpu,
        lora_rank=lora_rank,
        defers_gradient_sync=engine.use_no_sync_for_gradient_accumulation,
        entropy_bonus=learner.actor.entropy_coeff > 0,
        has_critic=learner.algorithm.adv_estimator == GAE,
        has_reference=learner.actor.use_kl_loss and not lora_rank,
        overhead_bytes=OVERHEAD_BYTES if has_gpu else GIB,
    )


def _optimizer_bytes(name: str, param_bytes: int) -> int:
    """Return the bytes of optimiser state for each parameter: two numbers for Adam, at most one for SGD."""
    if "8bit" in name.lower():
        return 2
    return param_bytes if name == "SGD" else 2 * param_bytes


def describe(name: str, model: ModelShape, how: TrainingShape, capacity: int, share: int) -> Iterator[str]:
    """Yield a table of one rank's memory, and the settings to change if it does not fit."""
    plan = plan_memory(model, how, share)
    whole = f"{how.num_ranks} rank{'s' if how.num_ranks > 1 else ''}, {how.tokens:,} tokens at once"
    yield f"{name}: memory of each of {whole}, in GiB; an estimate:"
    for part, size in table(plan):
        yield f"  {part:<44}{size / GIB:8.1f}"
    if host := host_bytes(model, how):
        yield f"  {'on the host, for each rank':<44}{host / GIB:8.1f}"
    verdict = "fits in" if plan.peak <= capacity else "does not fit in"
    yield f"  {plan.peak / GIB:.1f} GiB {verdict} {capacity / GIB:.1f} GiB"
    if plan.peak > capacity:
        yield from _describe_advice(model, how, capacity, share)
    elif faster := find_faster(model, how, capacity, share):
        settings = "; ".join(change.setting for change in faster)
        yield f"  faster, in {faster[-1].peak / GIB:.1f} GiB: {settings}"


def table(plan: MemoryPlan) -> list[tuple[str, int]]:
    """List the rows of a plan, in bytes: permanent parts, those of the backward pass, and the peak."""
    rows = [
        ("parameters", plan.parameters),
        ("gradients", plan.gradients),
        ("optimiser state", plan.optimizer_state),
        ("FSDP2's working copies", plan.working_copies),
        ("activations kept for the backward pass", plan.saved_activations),
        ("activations of one layer", plan.layer_activations),
        ("logits, their gradient, float32 chunks", plan.logits),
        ("the last four, at most at once", plan.backward),
        ("optimiser step, after them", plan.optimizer_temporaries),
        ("CUDA, libraries, fragments (assumed)", plan.overhead),
        ("inference engine on the same device", plan.engine_share),
    ]
    return [(name, size) for name, size in rows if size]


def _describe_advice(model: ModelShape, how: TrainingShape, capacity: int, share: int) -> Iterator[str]:
    alone, together = advise(model, how, capacity, share, set(EngineSettings.model_fields))
    for change in alone:
        yield f"warning: it fits with {change.setting} ({change.peak / GIB:.1f} GiB)"
    if together:
        settings = "; ".join(change.setting for change in together)
        yield f"warning: it fits with all of these: {settings} ({together[-1].peak / GIB:.1f} GiB)"
    if share and plan_memory(model, how).peak <= capacity:
        yield "warning: it fits without the inference engine on the same device: give vLLM a GPU of its own"
    elif not alone and not together:
        yield "warning: no setting is enough: take a smaller model, or GPUs with more memory"


def describe_time(learner: LearnerSettings, model: ModelShape, how: TrainingShape, tflops: float | None) -> str:
    """Describe the time of one step in a sentence, for rollouts of the greatest length."""
    num_rollouts = learner.groups_per_step * learner.max_group_size
    tokens = num_rollouts * learner.seq_len
    share = 1.0 if needs_log_probs(learner) else 1 / learner.actor.old_log_prob_interval
    flops = step_flops(model, how, tokens, learner.actor.ppo_epochs, share)
    work = f"{learner.model}: a step of {num_rollouts} rollouts of {learner.seq_len:,} tokens is {flops:.1e} FLOPs"
    if tflops is None:
        return f"{work}; give --gpu-tflops for its time"
    seconds = flops / (how.num_ranks * tflops * 1e12)
    return f"{work}: about {seconds:,.0f} s at {tflops:.3g} TFLOP/s on each rank; an estimate, without communication"


def _capacity(target: Target) -> tuple[bool, int]:
    """Return whether training is on GPUs, and a rank's bytes: as given, of the GPU here, or a share of this machine."""
    import torch

    if target.gpu_memory_gib is not None:
        return True, int(target.gpu_memory_gib * GIB)
    if torch.cuda.is_available():
        return True, int(torch.cuda.get_device_properties(0).total_memory)
    return False, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // target.num_ranks


def _engine_bytes(node: InferenceSettings, model: ModelShape, has_gpu: bool, capacity: int) -> int:
    """Return the bytes that vLLM takes: its share of a GPU, or its weights and KV cache on a host.

    Raises `UserError` if ``--gpu-memory-utilization`` is no number.
    """
    if not has_gpu:
        return int(node.kv_cache_gib * GIB) + 4 * model.num_params
    argument = node.find_vllm_argument("--gpu-memory-utilization")
    try:
        share = float(argument) if argument is not None else VLLM_SHARE
    except ValueError as error:
        raise UserError("inference.vllm_args: --gpu-memory-utilization needs a number, as 0.4") from error
    return int(share * capacity)


def _measured_tflops(target: Target, has_gpu: bool) -> float | None:
    """Return the given TFLOP/s, else those measured for a matrix product here, an upper bound for training.

    Returns None for GPUs of another machine.
    """
    if target.gpu_tflops is not None or target.gpu_memory_gib is not None:
        return target.gpu_tflops
    return measure_matrix_tflops(has_gpu)


def measure_matrix_tflops(has_gpu: bool) -> float:
    """Measure the TFLOP/s of the fastest of three products of square matrices: bfloat16 on a GPU, else float32."""
    import torch

    size, dtype = (8192, torch.bfloat16) if has_gpu else (1024, torch.float32)
    matrix = torch.ones(size, size, dtype=dtype, device="cuda" if has_gpu else "cpu")
    times = []
    for _ in range(3):
        started = time.perf_counter()
        (matrix @ matrix)[0, 0].item()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times) / 1e12
