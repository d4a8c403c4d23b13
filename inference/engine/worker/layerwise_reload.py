"""vLLM's layerwise reload of all weights, with every kernel set up anew and no parameter left out."""

from collections.abc import Iterator
from functools import partial

import torch
from vllm.config import ModelConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS

from lightningbus.schemas.text import name_some


class WeightsMissingError(ValueError):
    """Parameters of the model did not arrive with an update of all weights."""


def start_reload(model: torch.nn.Module, device: torch.device) -> None:
    """Make the model ready to take weights in checkpoint form.

    vLLM's CPU build computes experts from a packed copy, made with their kernel. The kernel is dropped, so that the
    layer makes both from the new weights.
    """
    if device.type == "cpu":
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None  # type: ignore[union-attr]
    for parameter in model.parameters():  # vLLM reads the name of a loader, which a partial function lacks
        loader = getattr(parameter, "weight_loader", None)
        if isinstance(loader, partial) and not hasattr(loader, "__name__"):
            vars(loader)["__name__"] = getattr(loader.func, "__name__", "partial")
    initialize_layerwise_reload(model)


def finish_reload(model: torch.nn.Module, model_config: ModelConfig, device: torch.device) -> None:
    """Bring loaded weights into the layout of the engine; raise `WeightsMissingError` if one did not arrive."""
    missing = sorted(_find_missing(model))
    finalize_layerwise_reload(model, model_config)
    if device.type == "cpu":
        _repack_heads(model)
    if missing:
        raise WeightsMissingError(
            f"{name_some(missing)} of {type(model).__name__} did not arrive: vLLM cannot replace the "
            "weights of this model while it runs"
        )


def _find_missing(model: torch.nn.Module) -> Iterator[str]:
    """Yield the names of parameters that no loader has got, before the reload is finished.

    A parameter that shares its memory with one that was loaded, such as a head tied to the embedding, is not missing.
    """
    missing: dict[str, int] = {}
    arrived: set[int] = set()
    for path, layer in model.named_modules():
        info = get_layerwise_info(layer)
        is_done = not info.can_load()
        served = layer._parameters if is_done else (info.kernel_tensors or ({}, {}))[0]
        loaded = {name for name, _ in info.loaded_weights}
        for name, parameter in layer._parameters.items():
            if parameter is None or not parameter.numel() or name in SKIP_LOAD_TENSORS:
                continue
            address = served[name].data_ptr() if served.get(name) is not None else 0
            if is_done or name in loaded:
                arrived.add(address)
            else:
                missing[f"{path}.{name}" if path else name] = address
    yield from (name for name, address in missing.items() if address not in arrived or not address)


def _repack_heads(model: torch.nn.Module) -> None:
    """Repack the output head: the CPU build computes from a packed copy, made when the head's weights are loaded.

    A head tied to the embedding has no tensor of its own in the file, so that copy would keep the first version.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
