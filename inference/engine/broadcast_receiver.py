"""The end of a broadcast in an engine: a worker of vLLM meets the others, receives, and knows what it has received."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]
from xxhash import xxh3_128

from bus.weights.collective import Group, Load, Wanted, join, meet, own_address, visit
from schemas.weights.safetensors_header import Tensor, parse_tensors

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
    """`schemas.weights.events.BroadcastPlan` for one engine; without an address there is no broadcast."""

    address: str = ""
    group: str = ""
    backend: Any = "gloo"
    meeting: str = ""
    rank: int = 0
    """Of the engine's first worker."""
    world: int = 0
    seconds: float = 0.0


class BroadcastReceiver:
    """What one worker holds of a group, from one version to the next."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._group: Group | None = None
        self._name = self._meeting = ""

    def join(self, at: Rendezvous, rank: int) -> None:
        """Wait until all are here, and be in their group; raises, and no weight has been touched yet.

        ``rank``: this worker's, in its engine.
        """
        try:
            host, _, port = at.address.rpartition(":")
            if self._store is None or at.group != self._name:
                self.leave()
                self._store = visit(host, int(port), at.seconds)
            meet(self._store, at.meeting, at.rank + rank, at.world, at.seconds)
            if self._group is None:
                own = own_address(host, int(port))
                self._group = join(at.backend, self._store, at.group, at.rank + rank, at.world, own, at.seconds)
            self._name, self._meeting = at.group, at.meeting
        except Exception:
            self.leave()
            raise

    def receive(self, content: str, size: int, load: Load) -> None:
        """Give every tensor to ``load``; raises ValueError if all of them together are not the file of ``content``.

        ``content`` and ``size`` are of the whole file. What was loaded until an error is raised must not be used.
        """
        if self._store is None or self._group is None:
            raise ValueError("nobody was met to receive weights from")
        header = self._store.get(f"{self._meeting}/header")
        digest = xxh3_128(header)

        def known(batch: Any) -> None:
            for _, tensor in batch:
                digest.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy())
            load(batch)

        try:
            self._group.receive([_wanted(name, one) for name, one in parse_tensors(header, size).items()], known)
            if digest.hexdigest() != content:
                raise ValueError("the weights that arrived are not those that were published")
        except Exception:
            self.leave()
            raise

    def leave(self) -> None:
        """Be in no group."""
        self._store = self._group = None
        self._name = self._meeting = ""


def _wanted(name: str, one: Tensor) -> Wanted:
    begin, end = one.data_offsets
    dtype = DTYPES.get(one.dtype)
    if dtype is None or math.prod(one.shape) * dtype.itemsize != end - begin:
        raise ValueError(f"tensor {name!r} of {one.dtype} cannot be received")
    return name, one.shape, dtype
