"""Several processes as one trainer: started by torchrun, joined by gloo on CPUs and NCCL on GPUs.

The first rank decides; the others do, in the same order, what it is about to do. All that is exchanged here is small
and goes over gloo; weights and gradients are the engine's.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from learner.batching.sequences import Row

T = TypeVar("T")
PATIENCE = timedelta(days=365)
"""How long a rank waits for the first one, which waits for rollouts; torchrun ends all when one dies."""

LOOPBACK = "lo"


class Ranks:
    """The process group; a single process is a group of one."""

    def __init__(self, device: str) -> None:
        """Join, or be alone unless a launcher such as torchrun has said otherwise."""
        import torch.distributed as dist

        self._dist = dist
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            if "RANK" in os.environ:
                dist.init_process_group(backend=backend, timeout=PATIENCE)
            else:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # it would listen for ranks there are none of
                with _rendezvous() as where:
                    dist.init_process_group(backend=backend, init_method=where, rank=0, world_size=1)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def broadcast(self, what: T | None = None) -> T:
        """What the first rank says, on every rank; the others pass nothing."""
        import torch

        objects = [what]
        if self.size > 1:
            self._dist.broadcast_object_list(objects, src=0, device=torch.device("cpu"))
        return objects[0]  # type: ignore[return-value]

    def all_gather(self, part: dict[int, Any]) -> dict[int, Any]:
        """The union of what every rank has, by key, on every rank."""
        if self.size == 1:
            return part
        parts: list[Any] = [None] * self.size
        self._dist.all_gather_object(parts, part)
        return {key: value for part in parts for key, value in part.items()}

    def mean(self, metrics: dict[str, float]) -> dict[str, float]:
        """The mean over ranks of each metric, on every rank."""
        parts = self.all_gather({self.rank: metrics}).values()
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: sum(part.get(name, 0.0) for part in parts) / self.size for name in names}


def is_follower() -> bool:
    """Whether a launcher started this process to follow the first rank."""
    return int(os.environ.get("RANK", "0")) > 0


def shares(rows: Sequence[Row], size: int) -> list[list[int]]:
    """Places of the rows for each rank: the longest first, each to the rank that has the fewest tokens."""
    shares_of_ranks: list[list[int]] = [[] for _ in range(size)]
    tokens = [0] * size
    for place in sorted(range(len(rows)), key=lambda place: (-len(rows[place].ids), place)):
        rank = min(range(size), key=lambda index: (tokens[index], index))
        shares_of_ranks[rank].append(place)
        tokens[rank] += len(rows[place].ids)
    return [sorted(part) for part in shares_of_ranks]


@contextmanager
def _rendezvous() -> Iterator[str]:
    handle, name = tempfile.mkstemp(prefix="lightningbus-")
    os.close(handle)
    try:
        yield f"file://{name}"
    finally:
        Path(name).unlink(missing_ok=True)
