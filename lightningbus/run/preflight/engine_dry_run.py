"""A dry run's check that a node's engine computes a model as the learner does, once its weights were replaced."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightningbus.inference.engine.base import Engine, EngineError
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.weights.canary import evaluate, fit_to_context, read_prompt_ids
from lightningbus.learner.model_check.check import ModelCheck
from lightningbus.learner.publishing.canary_prompts import to_engine_check
from lightningbus.run.errors import UserError
from lightningbus.schemas.weights.events import CanarySpec
from lightningbus.schemas.weights.safetensors_header import find_weight_files

MAX_GIB = 4.0
"""Weights of a model, in GiB, up to which the engine is started for its check alone."""
LEAVE_OUT = "--no-engine leaves out this check"
VLLM = ("-P", "-m", "vllm.entrypoints.openai.api_server")


def check_engine(model: str, check: ModelCheck, nodes: Sequence[InferenceSettings]) -> Iterator[str]:
    """Start vLLM as the first node of a model does, replace its weights by the model's, and have it score the tokens.

    Yields what was found, or why nothing was tried: a run's first node makes the same check. Raises `UserError` if the
    engine does not start, does not take the weights, or computes something else.
    """
    node = next((node for node in nodes if model in node.models and not node.frozen), None)
    if node is None or check.log_probs is None:
        return
    files = find_weight_files(check.settings.model_path)
    size = sum(file.stat().st_size for file in files) / (1 << 30)
    if not files or size > MAX_GIB:
        yield f"{model}: the engine was left out, for {size:.1f} GiB of weights: the first node checks it in the run"
        return
    spec = to_engine_check(check.rows, check.log_probs, check.engine_tolerance)
    with tempfile.TemporaryDirectory(prefix="lightningbus-engine-check-") as work:
        difference = asyncio.run(_measure(node, model, _join(files, Path(work)), spec, Path(work)))
    yield f"{model}: vLLM computes it as transformers does, {difference:.1g} nats per token apart"


async def _measure(node: InferenceSettings, model: str, weights: Path, spec: CanarySpec, work: Path) -> float:
    changes: dict[str, object] = {"model": model, "lora": None, "work_dir": work / "engine"}
    if node.python_executable is not None and node.vllm_command is None:
        changes["vllm_command"] = [str(node.python_executable), *VLLM]
    try:
        async with VllmEngine(node.model_copy(update=changes)) as engine:
            await engine.start()
            try:
                return await _compare(engine, model, weights, spec)
            finally:
                await engine.stop()
    except EngineError as error:
        raise UserError(f"{model}: vLLM cannot serve {node.model_path}: {error}; {LEAVE_OUT}") from error


async def _compare(engine: Engine, model: str, weights: Path, spec: CanarySpec) -> float:
    await engine.pause(recompute_kv_cache=True)
    await engine.load_weights([weights], version=0)
    await engine.resume()
    spec = fit_to_context(spec, engine.capabilities.max_model_len)
    result = evaluate(spec, await engine.score(model, read_prompt_ids(spec), version=0), [], None)
    if result.reason:
        raise UserError(f"{model}: vLLM does not compute it as the learner does: {result.reason}; {LEAVE_OUT}")
    return result.metrics["difference"]


def _join(files: Sequence[Path], work: Path) -> Path:
    """Return one file with all weights; several are joined in ``work``."""
    if len(files) == 1:
        return files[0]
    from safetensors.torch import load_file, save_file

    save_file({name: tensor for file in files for name, tensor in load_file(file).items()}, work / "weights")
    return work / "weights"
