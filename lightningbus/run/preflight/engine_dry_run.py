"""A dry run's check that a node's engine computes a model as the learner does, once its weights were replaced."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightningbus.inference.engine.base import Engine, EngineError
from lightningbus.inference.engine.peft import write_directory
from lightningbus.inference.engine.vllm_command import computes_in_float32
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.weights.canary import evaluate, fit_to_engine, read_prompt_ids
from lightningbus.learner.model_check.adapter_probe import make_adapter_probe
from lightningbus.learner.model_check.check import ModelCheck
from lightningbus.learner.publishing.canary_prompts import to_engine_check
from lightningbus.learner.publishing.weight_files import write_adapters
from lightningbus.run.errors import UserError
from lightningbus.schemas.weights.dtypes import read_dtype
from lightningbus.schemas.weights.events import CanarySpec
from lightningbus.schemas.weights.safetensors_header import find_weight_files

MAX_GIB = 4.0
"""Weights of a model, in GiB, up to which the engine is started for its check alone."""
LEAVE_OUT = "--no-engine leaves out this check"
VLLM = ("-P", "-m", "vllm.entrypoints.openai.api_server")


@dataclass(frozen=True, slots=True)
class _Trial:
    """Weights as a version has them, and what an engine has to compute with them."""

    files: Sequence[Path]
    """All weights first, then adapters."""
    spec: CanarySpec
    what: str
    """Words for the weights in a sentence."""


def check_engine(model: str, check: ModelCheck, nodes: Sequence[InferenceSettings]) -> Iterator[str]:
    """Start vLLM as the first node of a model does, replace its weights by the model's, and have it score the tokens.

    With LoRA it scores them again with adapters, which are merged or loaded as the node does. A node that computes in
    16 bits is tried in float32 before, where no rounding hides a fault. Yields what was found, or why nothing was
    tried: a run's first node makes the same check. Raises `UserError` if the engine does not start, does not take the
    weights, or computes something else.
    """
    node = next((node for node in nodes if model in node.models and not node.frozen), None)
    probe = check.make_probe(is_exact=True)
    if node is None or probe is None or check.log_probs is None:
        return
    files = find_weight_files(check.settings.model_path)
    size = sum(file.stat().st_size for file in files) / (1 << 30)
    if not files or size > MAX_GIB:
        yield f"{model}: the engine was left out, for {size:.1f} GiB of weights: the first node checks it in the run"
        return
    with tempfile.TemporaryDirectory(prefix="lightningbus-engine-check-") as directory:
        work = Path(directory)
        weights = _join(files, work)
        trials = [_Trial([weights], to_engine_check(probe, check.log_probs), "it")]
        if check.settings.lora.lora_rank:
            adapters = make_adapter_probe(check)
            if not adapters.is_visible:
                yield (
                    f"warning: {model}: the engine is not tried with adapters: those of lora.target_modules change the "
                    f"model by {adapters.effect:.1g} nats per token, where rounding explains {check.rounding:.1g}"
                )
            else:
                write_adapters(adapters.tensors, adapters.scale, work / "adapters")
                way = "merged into it" if node.lora is None else "beside it"
                is_exact = node.lora is None and read_dtype(check.settings.model_path) == "float32"  # no sum is rounded
                spec = to_engine_check(replace(probe, is_exact=is_exact), adapters.log_probs)
                trials.append(_Trial([weights, work / "adapters"], spec, f"it with adapters {way}"))
        if not computes_in_float32(node):
            yield _try_in_float32(node, model, trials[0], work)
        differences = asyncio.run(_measure(node, model, trials, work))
    for trial, difference in zip(trials, differences, strict=True):
        yield f"{model}: vLLM computes {trial.what} as transformers does, {difference:.1g} nats per token apart"


def _try_in_float32(node: InferenceSettings, model: str, trial: _Trial, work: Path) -> str:
    """Compare a node's vLLM in float32, and say what was found; raises `UserError` if it computes something else."""
    exact = node.model_copy(update={"vllm_args": [*node.vllm_args, "--dtype", "float32"]})
    try:
        (difference,) = asyncio.run(_measure(exact, model, [trial], work))
    except _EngineStartError as error:
        return f"{model}: vLLM does not serve it in float32, where a small fault would show: {error}"
    return f"{model}: vLLM in float32 computes it as transformers does, {difference:.1g} nats per token apart"


class _EngineStartError(UserError):
    """The engine did not start, or did not take weights."""


async def _measure(node: InferenceSettings, model: str, trials: Sequence[_Trial], work: Path) -> list[float]:
    changes: dict[str, object] = {"model": model, "work_dir": work / "engine"}
    if node.lora is not None:
        changes["lora"] = node.lora.model_copy(update={"models": []})
    if node.python_executable is not None and node.vllm_command is None:
        changes["vllm_command"] = [str(node.python_executable), *VLLM]
    node = node.model_copy(update=changes)
    try:
        async with VllmEngine(node) as engine:
            await engine.start()
            try:
                return [await _compare(engine, node, trial, version, work) for version, trial in enumerate(trials)]
            finally:
                await engine.stop()
    except EngineError as error:
        raise _EngineStartError(f"{model}: vLLM cannot serve {node.model_path}: {error}; {LEAVE_OUT}") from error


async def _compare(engine: Engine, node: InferenceSettings, trial: _Trial, version: int, work: Path) -> float:
    name = node.model
    if node.lora is not None and len(trial.files) > 1:  # the base is loaded
        name = f"{node.model}@{version}"
        write_directory(trial.files[1], work / name, node.lora.rank)
        await engine.load_adapter(name, work / name)
    else:
        await engine.pause(recompute_kv_cache=True)
        await engine.load_weights(trial.files, version)
        await engine.resume()
    spec = fit_to_engine(trial.spec, engine.capabilities)
    result = evaluate(spec, await engine.score(name, read_prompt_ids(spec), version), [], None)
    if result.reason:
        raise UserError(
            f"{node.model}: vLLM does not compute {trial.what} as the learner does: {result.reason}; {LEAVE_OUT}"
        )
    return result.metrics["difference"]


def _join(files: Sequence[Path], work: Path) -> Path:
    """Return one file with all weights; several are joined in ``work``."""
    if len(files) == 1:
        return files[0]
    from safetensors.torch import load_file, save_file

    save_file({name: tensor for file in files for name, tensor in load_file(file).items()}, work / "weights")
    return work / "weights"
