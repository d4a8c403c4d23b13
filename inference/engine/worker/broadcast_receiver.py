"""Receives a weight broadcast in a vLLM worker: joins the group, receives the tensors, verifies their hash."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]
from xxhash import xxh3_128

from lightningbus.bus.weights.collective import (
    BroadcastGroup,
    Load,
    TensorSpec,
    connect_store,
    init_group,
    local_ip_towards,
    run_rendezvous,
)
from lightningbus.schemas.weights.safetensors_header import Tensor, parse_tensors

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass
class Rendezvous:
    """`lightningbus.schemas.weights.events.BroadcastPlan` for one engine; without an address there is no broadcast."""

    address: str = ""
    group: str = ""
    backend: Any = "gloo"
    meeting: str = ""
    rank: int = 0
    """Rank of the engine's first worker in the group."""
    world: int = 0
    seconds: float = 0.0


class BroadcastReceiver:
    """One worker's membership in a broadcast group, kept from one version to the next."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._group: BroadcastGroup | None = None
        self._group_name = self._rendezvous_key = ""

    def join(self, rendezvous: Rendezvous, worker_rank: int) -> None:
        """Wait for all participants and join their group; if it raises, no weight has been changed yet.

        ``worker_rank``: this worker's rank in its engine.
        """
        try:
            host, _, port = rendezvous.address.rpartition(":")
            if self._store is None or rendezvous.group != self._group_name:
                self.leave()
                self._store = connect_store(host, int(port), rendezvous.seconds)
            run_rendezvous(
                self._store, rendezvous.meeting, rendezvous.rank + worker_rank, rendezvous.world, rendezvous.seconds
            )
            if self._group is None:
                local_ip = local_ip_towards(host, int(port))
                self._group = init_group(
                    rendezvous.backend,
                    self._store,
                    rendezvous.group,
                    rendezvous.rank + worker_rank,
                    rendezvous.world,
                    local_ip,
                    rendezvous.seconds,
                )
            self._group_name, self._rendezvous_key = rendezvous.group, rendezvous.meeting
        except Exception:
            self.leave()
            raise

    def receive(self, content: str, size: int, load: Load) -> None:
        """Give every tensor to ``load``; raises ValueError if all of them together are not the file of ``content``.

        ``content`` and ``size`` are of the whole file. What was loaded until an error is raised must not be used.
        """
        if self._store is None or self._group is None:
            raise ValueError("no broadcast group was joined")
        header = self._store.get(f"{self._rendezvous_key}/header")
        digest = xxh3_128(header)

        def hash_and_load(batch: Any) -> None:
            for _, tensor in batch:
                digest.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy())
            load(batch)

        try:
            self._group.receive(
                [_spec(name, tensor) for name, tensor in parse_tensors(header, size).items()], hash_and_load
            )
            if digest.hexdigest() != content:
                raise ValueError("the weights that arrived are not those that were published")
        except Exception:
            self.leave()
            raise

    def leave(self) -> None:
        """Leave the group."""
        self._store = self._group = None
        self._group_name = self._rendezvous_key = ""


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    begin, end = tensor.data_offsets
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or math.prod(tensor.shape) * dtype.itemsize != end - begin:
        raise ValueError(f"tensor {name!r} of {tensor.dtype} cannot be received")
    return name, tensor.shape, dtype
