"""Swaps of a real vLLM in this process, each with a fault: ``python -m tests.inference.stale_swaps`` prints errors.

It prints a JSON object: the error of each swap by the name of its fault, empty without an error.
"""

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.families.measure import ENGINE_VARIABLES

Patch = Callable[[Any], tuple[Any, str, Any]]
"""Makes a fault of a model: the object whose attribute is replaced, its name, and the replacement."""


def keep_tensors(parts: tuple[str, ...], old: dict[str, Any]) -> Patch:
    """Leave a delta out of some layers: their tensors are those of the version before."""

    def patch(model: Any) -> tuple[Any, str, Any]:
        load = model.load_weights

        def load_weights(tensors: Any) -> Any:
            kept = {name for name in old if any(part in name for part in parts)}
            return load((name, old[name] if name in kept else tensor) for name, tensor in tensors)

        return model, "load_weights", load_weights

    return patch


def keep_file(part: str, old: dict[str, Any]) -> Patch:
    """Read some tensors of the version before in place of the file's."""
    from lightningbus.inference.engine.worker import weight_transfer

    read = weight_transfer.tensors

    def tensors(*arguments: Any) -> Any:
        return ((name, old[name] if part in name else tensor) for name, tensor in read(*arguments))

    return lambda model: (weight_transfer, "tensors", tensors)


def keep_packed_copy(model: Any) -> tuple[Any, str, Any]:
    """Compute a layer from the packed copy of the version before."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    layer, process = model.model.layers[1].mlp.down_proj, UnquantizedLinearMethod.process_weights_after_loading
    old = layer.cpu_linear

    def process_weights_after_loading(method: Any, processed: Any) -> None:
        process(method, processed)
        if processed is layer:
            layer.cpu_linear = old

    return UnquantizedLinearMethod, "process_weights_after_loading", process_weights_after_loading


def keep_head(model: Any) -> tuple[Any, str, Any]:
    """Leave the packed copy of a tied head behind."""
    from lightningbus.inference.engine.worker import layerwise_reload

    return layerwise_reload, "_repack_heads", lambda model: None


def keep_norm(model: Any) -> tuple[Any, str, Any]:
    """Restore a parameter after the reload."""
    from lightningbus.inference.engine.worker import layerwise_reload, weight_transfer

    old, finish = model.model.norm.weight.clone(), layerwise_reload.finish_reload

    def finish_reload(*arguments: Any) -> None:
        finish(*arguments)
        model.model.norm.weight.data.copy_(old)

    return weight_transfer, "finish_reload", finish_reload


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute while the block runs."""
    old = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, old)


def main() -> None:
    """Swap versions, a right one before and after each with a fault; print the error of each."""
    os.environ.update(ENGINE_VARIABLES)
    logging.disable(logging.WARNING)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="swaps-") as directory:
        json.dump(measure(Path(directory)), out)
    out.flush()
    os._exit(0)  # an engine in this process may wait for its threads for ever


def measure(directory: Path) -> dict[str, str]:
    """Make the swaps; each version differs from the other in few bits of few elements, as after a step in bfloat16."""
    import torch
    from safetensors.torch import load_file, save_file

    from tests.families.families import Family, save_tiny_model
    from tests.families.measure import _engine
    from tests.learner.conftest import tiny_tokenizer

    family = Family("llama", {"num_hidden_layers": 4, "tie_word_embeddings": True})
    model_path = save_tiny_model(family, directory / "model")
    tiny_tokenizer(model_path)
    torch.manual_seed(0)
    old = {name: tensor.bfloat16() for name, tensor in load_file(model_path / "model.safetensors").items()}
    new = {
        name: torch.where(torch.rand(tensor.shape) < 0.03, tensor * (1 + 2**-7), tensor) for name, tensor in old.items()
    }
    files = [directory / "old.safetensors", directory / "new.safetensors"]
    for file, tensors in zip(files, (old, new), strict=True):
        save_file(tensors, file, {"format": "pt"})
    faults: dict[str, Patch] = {
        "one layer": keep_tensors((".layers.1.",), old),
        "half of the layers": keep_tensors((".layers.1.", ".layers.3."), old),
        "the whole delta": keep_tensors(("",), old),
        "one tensor": keep_tensors((".layers.2.self_attn.k_proj",), old),
        "one tensor of the file": keep_file(".layers.2.self_attn.k_proj", old),
        "packed copy": keep_packed_copy,
        "tied head": keep_head,
        "norm": keep_norm,
    }
    errors = {}
    with _engine(model_path, reads_images=False) as llm:
        model = llm.llm_engine.model_executor.driver_worker.worker.get_model()
        errors["none"] = swap(llm, files[0]) + swap(llm, files[1]) + swap(llm, files[0])
        for name, make in faults.items():
            with replaced(*make(model)):
                errors[name] = swap(llm, files[1])
            errors["none"] += swap(llm, files[0])
    return errors


def swap(llm: Any, file: Path) -> str:
    """Load a version; return the error, empty without one."""
    llm.llm_engine.model_executor.driver_worker.worker._weight_update_active = False  # after an error
    llm.start_weight_update()
    try:
        llm.update_weights({"update_info": {"paths": [str(file)]}})
        llm.finish_weight_update("1")
    except Exception as error:  # whatever vLLM makes of it
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
