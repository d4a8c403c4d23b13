"""Several processes as one trainer: started by torchrun, joined by gloo on CPUs and NCCL on GPUs.

Rank 0 broadcasts each call, and the workers make the same calls in the same order. What is exchanged here is small and
goes over gloo; the engine exchanges weights and gradients itself.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from lightningbus.learner.transitions.sequences import TrainSequence

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(days=365)
"""Longest wait of a worker for rank 0, which waits for rollouts; torchrun ends all ranks when one dies."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Interface of a group of one: gloo and NCCL listen for other ranks even there."""


class ProcessGroup:
    """The process group; a single process is a group of one."""

    def __init__(self, device: str, *, has_nccl_sender: bool = False) -> None:
        """Join the group that a launcher such as torchrun describes; without one, make a group of one.

        ``has_nccl_sender``: this process sends weights by NCCL, which reads its interface once for all groups.
        """
        import torch.distributed as dist
        from torch.distributed import HashStore  # type: ignore[attr-defined]

        self._dist = dist
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            if "RANK" in os.environ:
                dist.init_process_group(backend=backend, timeout=COLLECTIVE_TIMEOUT)
            else:
                for variable, interface in LOOPBACK.items():
                    if not (has_nccl_sender and variable.startswith("NCCL")):
                        os.environ.setdefault(variable, interface)
                # NCCL uses the store at its first exchange, so it lasts as long as the group.
                dist.init_process_group(backend=backend, store=HashStore(), rank=0, world_size=1)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ranks_of_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.for_checkpoints = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT) if self.size > 1 else None
        """Group of all ranks, whose exchanges may go on beside those of training; None: there is one rank."""

    def broadcast(self, value: T | None = None) -> T:
        """Return the value of rank 0 on every rank; the workers pass nothing."""
        import torch

        objects = [value]
        if self.size > 1:
            self._dist.broadcast_object_list(objects, src=0, device=torch.device("cpu"))
        return objects[0]  # type: ignore[return-value]

    def all_gather(self, part: dict[int, Any]) -> dict[int, Any]:
        """Merge the dicts of all ranks, and return the union on every rank."""
        if self.size == 1:
            return part
        parts: list[Any] = [None] * self.size
        self._dist.all_gather_object(parts, part)
        return {key: value for part in parts for key, value in part.items()}

    def mean(self, metrics: dict[str, float] | None) -> dict[str, float]:
        """Return the mean of each metric over all ranks, on every rank; a metric that a rank lacks counts as 0.

        Pass None on a rank that has the same sequences as another one: it does not count.
        """
        parts = [part for part in self.all_gather({self.rank: metrics}).values() if part is not None]
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}


def is_worker_rank() -> bool:
    """Return whether a launcher started this process as another rank than 0."""
    return int(os.environ.get("RANK", "0")) > 0


def balance_by_tokens(sequences: Sequence[TrainSequence], size: int) -> list[list[int]]:
    """Assign sequences to ranks, the longest first, each to the rank with the fewest tokens; return indices by rank."""
    shards: list[list[int]] = [[] for _ in range(size)]
    tokens = [0] * size
    for index in sorted(range(len(sequences)), key=lambda index: (-len(sequences[index].token_ids), index)):
        rank = min(range(size), key=lambda rank: (tokens[rank], rank))
        shards[rank].append(index)
        tokens[rank] += len(sequences[index].token_ids)
    return [sorted(shard) for shard in shards]
