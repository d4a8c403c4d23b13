"""vLLM weight-transfer engine that loads safetensors files, on CPU and GPU alike. Runs inside vLLM's workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from inference.peft import A_SUFFIX, B_SUFFIX


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nothing to set up."""


@dataclass
class WeightFile(WeightTransferUpdateInfo):
    """Safetensors files, verified by the node before it asks.

    The first has all weights under their Hugging Face names; a second has LoRA adapters under PEFT's, and ``scale``
    in its metadata.
    """

    paths: list[str]


class FileWeightEngine(WeightTransferEngine[NoInit, WeightFile]):
    """Reads tensors one by one from the file into the running model."""

    init_info_cls = NoInit
    update_info_cls = WeightFile

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Make the model ready to take weights in checkpoint form."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, which waits for the accelerator; a CPU-only torch has none and raises."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WeightFile) -> None:
        """Load every tensor, adapters added to what they adapt."""
        self.model.load_weights(tensors(*update_info.paths))  # type: ignore[operator]

    def finish_weight_update(self) -> None:
        """Bring the loaded weights into the engine's own layout."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            _repack_heads(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""


def _repack_heads(model: torch.nn.Module) -> None:
    """Pack the output head anew: the CPU build computes from a packed copy, made when the head's weights are loaded.

    A head tied to the embedding has no tensor of its own in the file, so that copy would keep the first version.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def tensors(path: str, adapters: str | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a file; with adapters ``W + scale * B A`` (LoRA, arXiv:2106.09685, section 4.1)."""
    products = _products(adapters) if adapters is not None else {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            tensor = file.get_tensor(name)
            if name in products:
                tensor = (tensor.float() + products.pop(name)).to(tensor.dtype)
            yield name, tensor
    if products:
        raise ValueError(f"adapters of {', '.join(sorted(products)[:3])} have no weights to be added to")


def _products(path: str) -> dict[str, torch.Tensor]:
    """By the name of the weights they are added to."""
    found = {}
    with safe_open(path, framework="pt", device="cpu") as file:
        scale = float(file.metadata()["scale"])
        for name in file.keys():  # noqa: SIM118 - not a dict
            if not name.endswith(A_SUFFIX):
                continue
            module = name.removesuffix(A_SUFFIX)
            product = file.get_tensor(module + B_SUFFIX).float() @ file.get_tensor(name).float()
            found[module.removeprefix("base_model.model.") + ".weight"] = scale * product
    return found
