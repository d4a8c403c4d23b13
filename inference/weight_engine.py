"""vLLM weight-transfer engine that loads a safetensors file, on CPU and GPU alike. Runs inside vLLM's workers."""

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


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nothing to set up."""


@dataclass
class WeightFile(WeightTransferUpdateInfo):
    """A safetensors file of Hugging Face names, verified by the node before it asks."""

    path: str


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
        """Load every tensor of the file."""
        self.model.load_weights(_tensors(update_info.path))  # type: ignore[operator]

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


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            yield name, file.get_tensor(name)
