"""vLLM weight-transfer engine that loads safetensors files or takes part in a broadcast. Runs inside vLLM's workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from xxhash import xxh3_128

from lightningbus.inference.engine.worker.broadcast_receiver import BroadcastReceiver, Rendezvous
from lightningbus.inference.engine.worker.head_adapters import allow_prompt_logprobs
from lightningbus.inference.engine.worker.layerwise_reload import finish_reload, start_reload
from lightningbus.inference.engine.worker.swap_proof import StaleWeightsError, SwapProof
from lightningbus.schemas.text import name_some
from lightningbus.schemas.weights.adapters import compute_products
from lightningbus.schemas.weights.delta import fingerprint
from lightningbus.schemas.weights.safetensors_header import read_header


@dataclass
class Init(Rendezvous, WeightTransferInitInfo):
    """Files need no setup; a broadcast begins with a rendezvous."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Safetensors files, verified by the node, or else a broadcast whose group was joined.

    The first file has all weights under their Hugging Face names; a second has LoRA adapters under PEFT's, and
    ``scale`` in its metadata. ``content`` is the fingerprint of the first file, or of the one that a broadcast sends;
    empty: unknown. ``size`` is the broadcast's.
    """

    paths: list[str] = field(default_factory=list)
    content: str = ""
    size: int = 0


class LightningbusWeightEngine(WeightTransferEngine[Init, Update]):
    """Brings tensors into the running model one by one, from a file or from the learner's memory."""

    init_info_cls = Init
    update_info_cls = Update

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        allow_prompt_logprobs()
        self._receiver = BroadcastReceiver()
        self._proof: SwapProof | None = None
        self._unproved: set[str] | None = None
        """Parameters whose values vLLM changes as it loads them, found in the first reload; None before that."""

    def init_transfer_engine(self, init_info: Init) -> None:
        """Join the group of a broadcast; at the start of the engine there is none."""
        if init_info.address:
            parallel = self.parallel_config
            self._receiver.join(init_info, parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def start_weight_update(self) -> None:
        """Make the model ready to take weights in checkpoint form."""
        if self._proof is not None:  # of an update that ended with an error
            self._proof.stop()
        start_reload(self.model, self.device)
        self._proof = SwapProof(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load weights; the base class waits for the accelerator, which raises on a CPU-only torch."""
        with set_current_vllm_config(self.vllm_config):  # a layer makes its kernel once its weights are complete
            self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Update) -> None:
        """Load every tensor: from files, with adapters merged into their weights, or from a broadcast.

        A broadcast is loaded before its hash is known: if that is wrong, this raises, and the node stops the engine.
        A second copy of all weights does not fit into GPU memory.
        """
        assert self._proof is not None, "an update was started"
        follow = self._proof.follow
        load: Any = self.model.load_weights
        if update_info.paths:
            source = tensors(*update_info.paths)
            if len(update_info.paths) == 1:  # adapters make tensors that no file has
                path = Path(update_info.paths[0])
                source = verify(source, path, update_info.content or fingerprint(path))
            load(follow(source))
            return
        with disable_mtp_completeness_check():  # each batch is a part of all tensors
            self._receiver.receive(update_info.content, update_info.size, lambda batch: load(follow(batch)))

    def finish_weight_update(self) -> None:
        """Bring the loaded weights into the engine's own layout; raise ValueError if a parameter does not hold them."""
        assert self._proof is not None, "an update was started"
        with set_current_vllm_config(self.vllm_config):
            finish_reload(self.model, self.model_config, self.device)
            failures = self._proof.finish()
        self._proof = None
        if self._unproved is None:
            self._unproved = failures
            return
        if stale := sorted(failures - self._unproved):
            raise StaleWeightsError(
                f"{name_some(stale)} of {type(self.model).__name__} hold other values than the version's: the engine "
                "has to start again"
            )

    def shutdown(self) -> None:
        """Leave the broadcast group."""
        self._receiver.leave()


def tensors(path: str, adapters: str | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a file in the order of its bytes, with the products of its adapters added."""
    products = _products(adapters) if adapters is not None else {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.offset_keys():
            tensor = file.get_tensor(name)
            if name in products:
                tensor = (tensor.float() + products.pop(name)).to(tensor.dtype)
            yield name, tensor
    if products:
        raise ValueError(f"adapters of {name_some(sorted(products))} have no weights to be added to")


def verify(tensors: Iterable[tuple[str, torch.Tensor]], path: Path, content: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors of a file; raise ValueError at the end if together they are not the file of ``content``."""
    digest = xxh3_128(read_header(path))
    for name, tensor in tensors:
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        yield name, tensor
    if digest.hexdigest() != content:
        raise ValueError(f"the tensors of {path.name} are not those that were published: fetch the version again")


def _products(path: str) -> dict[str, torch.Tensor]:
    """Compute the products of an adapter file, by the name of the weights they are added to."""
    with safe_open(path, framework="pt", device="cpu") as file:
        return dict(compute_products(file, float(file.metadata()["scale"])))
