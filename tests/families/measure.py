"""One family measured: how a learner computes it, what it publishes, and what vLLM serves of that after each swap.

``python -m tests.families.measure NAME`` prints a JSON object; a process for each family, because vLLM keeps much.
"""

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SWAPS = 3
"""Versions that an engine gets, one after another, each with other weights."""
LORA = {"lora_rank": 4, "lora_alpha": 8}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
"""Modules with adapters where not all linear ones may have them."""
ENGINE_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
}  # fmt: skip


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Measure a family; each part is figures, or the reason why it was refused."""
    import torch

    from tests.families.families import FAMILIES, save_tiny_model
    from tests.learner.conftest import tiny_tokenizer

    model = save_tiny_model(FAMILIES[name], directory / "model")
    tiny_tokenizer(model)
    parts = {"engine": _measure_learner(model, directory, {}), "lora": _measure_learner(model, directory, LORA)}
    result: dict[str, Any] = {"learner": parts["engine"][0]}
    reason = parts["lora"][0].get("refused", "")
    if has_other_targets := "set it to" in reason:
        parts["lora"] = _measure_learner(model, directory, {**LORA, "target_modules": ATTENTION})
    torch.distributed.destroy_process_group()  # the trainers'
    for part, (figures, files, rows, right) in parts.items():
        reads_images = bool(FAMILIES[name].vision)
        result[part] = _measure_engine(model, files, rows, right, reads_images) if files else figures
    if has_other_targets:
        result["lora"]["all_linear"] = reason
    return result


def _measure_learner(
    model: Path, directory: Path, lora: dict[str, Any]
) -> tuple[dict[str, Any], list[list[Path]], list[list[int]], list[list[list[float]]]]:
    """Check a learner and write versions of it: its figures, files, probe, and log-probabilities by version."""
    import torch

    from lightningbus.learner.model_check.agreement import mean_difference
    from lightningbus.learner.model_check.check import check_model
    from lightningbus.learner.publishing.weight_files import write_full, write_weights
    from lightningbus.learner.training.verl_trainer import VerlTrainer
    from tests.learner.conftest import settings_for

    place = directory / f"checkpoints-{len(lora)}"
    try:
        settings = settings_for(
            model, checkpoint_dir=place, engine={"check_model": True}, **({"lora": lora} if lora else {})
        )
        trainer = VerlTrainer(settings)
        started = time.process_time()
        check_model(settings, "cpu")  # again, now that all packages are imported
        probe = trainer.check_model()
    except ValueError as error:
        return {"refused": str(error).replace(str(model), "the model")}, [], [], []
    assert probe is not None
    seconds = time.process_time() - started
    engine, check = trainer._settings.engine, trainer._model_check
    trained = trainer._infer(trainer._engine, probe.rows, "log_probs", in_training_mode=True)
    figures: dict[str, Any] = {
        "attention": engine.attn_implementation,
        "is_packed": bool(engine.use_remove_padding),
        "difference": mean_difference(trained, check.log_probs or ()),
        "rounding": check.rounding,
        "seconds": seconds,
    }
    base = directory / f"base-{len(lora)}.safetensors"
    write_full(trainer, base)
    figures["has_names_of_its_files"] = _names(base) == {
        name for file in model.glob("*.safetensors") for name in _names(file)
    }
    files, right = [], []
    torch.manual_seed(1)
    for version in range(SWAPS):
        path = directory / f"{len(lora)}-{version}.safetensors"
        write_weights(trainer, path)
        files.append([base, path] if lora else [path])
        right.append([values[1:].tolist() for values in trainer.log_probs(probe.rows)])
        with torch.no_grad():
            for parameter in trainer._engine.module.parameters():
                if parameter.requires_grad and parameter.dim() > 1:
                    whole = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                    whole.add_(0.02 * torch.randn(whole.shape))
    return figures, files, [row.token_ids.tolist() for row in probe.rows], right


def _names(file: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as tensors:
        return set(tensors.keys())


def _measure_engine(
    model: Path, files: list[list[Path]], rows: list[list[int]], right: list[list[list[float]]], reads_images: bool
) -> dict[str, Any]:
    """Return the mean difference to the learner after each swap, in nats per token."""
    import numpy as np

    differences: list[float] = []
    seconds = 0.0
    try:
        with _engine(model, reads_images) as llm:
            for version, paths in enumerate(files):
                llm.start_weight_update()
                llm.update_weights({"update_info": {"paths": [str(path) for path in paths]}})
                llm.finish_weight_update(str(version))
                started = time.process_time()
                scores = _score(llm, rows)
                seconds = time.process_time() - started
                pairs = zip(scores, right[version], strict=True)
                differences.append(float(np.mean([abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True)])))
    except Exception as error:  # vLLM and a model's code may raise anything
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}", "differences": differences}
    return {"differences": differences, "seconds": seconds}


@contextmanager
def _engine(model: Path, reads_images: bool) -> Iterator[Any]:
    from vllm import LLM
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    llm = LLM(
        model=str(model), dtype="float32", load_format="dummy", enforce_eager=True, max_model_len=192, max_num_seqs=8,
        weight_transfer_config={"backend": "lightningbus"}, disable_log_stats=True, enable_prefix_caching=False,
        language_model_only=reads_images,
    )  # fmt: skip
    try:
        llm.init_weight_transfer_engine({"init_info": {}})
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        destroy_model_parallel()
        destroy_distributed_environment()


def _score(llm: Any, rows: list[list[int]]) -> list[list[float]]:
    from vllm import SamplingParams

    options = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": row} for row in rows], options, use_tqdm=False)
    return [
        [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], row[1:], strict=True)]
        for output, row in zip(outputs, rows, strict=True)
    ]


def main() -> None:
    """Measure the family that the command line names, and print the result as the last line."""
    os.environ.update(ENGINE_VARIABLES)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no result
    with tempfile.TemporaryDirectory(prefix="family-") as directory:
        json.dump(measure(sys.argv[1], Path(directory)), out)
    out.flush()
    os._exit(0)  # an engine in this process may wait for its threads for ever


if __name__ == "__main__":
    main()
