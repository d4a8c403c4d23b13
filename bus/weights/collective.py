"""Weights sent from the memory of one process into that of others: a store where a group meets, and a broadcast.

Both ends are here, so that they cannot differ: rank 0 is the learner's sender, the others are the workers of vLLM's
engines. Over NCCL it is vLLM's own transfer (`vllm.distributed.weight_transfer`), so there both ends need vLLM; over
gloo, for machines without GPUs, torch's. Nothing is pickled. torch's TCPStore has no authentication: SECURITY.md.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    DistStoreError,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from lightningbus.schemas.weights.events import Backend

TENSOR_SECONDS = 100.0
"""gloo: longest that a tensor may take; less than a node waits for its engine."""
PACKED_BYTES = 256 << 20
"""Bytes of tensors that NCCL sends together. Both ends must count alike; each holds two such parts."""
COMMIT, ABORT = "met", "off"

NamedTensor = tuple[str, torch.Tensor]
TensorSpec = tuple[str, tuple[int, ...], torch.dtype]
Load = Callable[[list[NamedTensor]], None]


class RendezvousTimeoutError(Exception):
    """Some ranks of a group did not come in time; all of them abort."""


class BroadcastGroup(Protocol):
    """Ranks that have met; all call the same method, with tensors of the same sizes in the same order.

    Raises RuntimeError when a rank is gone. NCCL may not notice, so callers need a time limit.
    """

    def send(self, tensors: Iterable[NamedTensor]) -> None:
        """Send tensors on the CPU as ``uint8[bytes]``; only rank 0 calls this."""
        ...

    def receive(self, wanted: Sequence[TensorSpec], load: Load) -> None:
        """Receive all tensors in parts, and pass each once to ``load``; every rank but 0 calls this."""
        ...


def create_store(host: str, port: int) -> TCPStore:
    """Create a store that listens only on ``host``; port 0 picks a free one. Raise OSError."""
    listener = socket.create_server((host, port))
    at = listener.getsockname()[1]
    # libuv's store does not take a socket of ours, and by itself a store listens everywhere.
    return TCPStore(
        host, at, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
    )


def connect_store(host: str, port: int, seconds: float) -> TCPStore:
    """Connect to another process's store; raise RuntimeError if it is not reached in time."""
    timeout = timedelta(seconds=seconds)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout, use_libuv=False)


def run_rendezvous(store: Store, rendezvous_key: str, rank: int, world_size: int, seconds: float) -> None:
    """Wait for all ranks: either all of them commit, or all abort.

    Raises `RendezvousTimeoutError` after an abort, also in a rank that comes later.
    Raises RuntimeError if the store is gone.

    The last rank to arrive proposes COMMIT. A rank whose time is over proposes ABORT. The first proposal decides.
    """
    decided_key = f"{rendezvous_key}/decided"
    store.set(f"{rendezvous_key}/arrived/{rank}", "")
    proposal = COMMIT if store.add(f"{rendezvous_key}/num_arrived", 1) == world_size else ABORT
    if proposal == ABORT:
        with suppress(DistStoreError):
            store.wait([decided_key], timedelta(seconds=seconds))
    outcome = store.compare_set(f"{rendezvous_key}/outcome", "", proposal)  # wakes nobody: `decided_key` does
    store.set(decided_key, "")
    if outcome != COMMIT.encode():
        raise RendezvousTimeoutError(f"not all {world_size} ranks of {rendezvous_key} arrived within {seconds:g} s")


def missing_ranks(store: Store, rendezvous_key: str, world_size: int) -> list[int]:
    """List the ranks that have not come to a rendezvous."""
    return [rank for rank in range(world_size) if not store.check([f"{rendezvous_key}/arrived/{rank}"])]


def init_group(
    backend: Backend, store: Store, name: str, rank: int, world_size: int, host: str, seconds: float
) -> BroadcastGroup:
    """Make the group of all ranks that have met; raise RuntimeError if it takes too long, which NCCL may not notice.

    ``host``: the address under which others reach this rank.
    """
    group_store = PrefixStore(name, store)
    return (
        Nccl(group_store, rank, world_size) if backend == "nccl" else Gloo(group_store, rank, world_size, host, seconds)
    )


def local_ip_towards(host: str, port: int) -> str:
    """Return the address of this machine on the route to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, port))  # a datagram socket: nothing is sent
        return str(way.getsockname()[0])


class Gloo:
    """A tensor at a time, by the CPUs."""

    def __init__(self, store: Store, rank: int, world_size: int, host: str, seconds: float) -> None:
        """See `join`."""
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # Else it listens at whatever address the machine's name has, as vLLM's own stateless group does.
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=seconds)
        self._group: Any = ProcessGroupGloo(store, rank, world_size, options)
        self._group._set_default_timeout(timedelta(seconds=TENSOR_SECONDS))

    def send(self, tensors: Iterable[NamedTensor]) -> None:
        """See `RolloutGroup`."""
        for _, tensor in tensors:
            self._group.broadcast(tensor, 0).wait()

    def receive(self, wanted: Sequence[TensorSpec], load: Load) -> None:
        """See `RolloutGroup`."""
        for name, shape, dtype in wanted:
            tensor = torch.empty(shape, dtype=dtype)
            self._group.broadcast(tensor.reshape(-1).view(torch.uint8), 0).wait()
            load([(name, tensor)])


class Nccl:
    """vLLM's own: packed, and copied while the lot before is on its way."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        """See `join`; on the GPU that is this process' current one."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        if rank == 0:
            store.set("id", bytes(NCCLLibrary().ncclGetUniqueId().internal))  # type: ignore[arg-type]
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._group = uid_init_process_group(store.get("id"), rank, world_size, self._device)

    def send(self, tensors: Iterable[NamedTensor]) -> None:
        """See `RolloutGroup`."""
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iter(tensors), self._group, 0, lambda named: named[1].to(self._device), PACKED_BYTES
        )

    def receive(self, wanted: Sequence[TensorSpec], load: Load) -> None:
        """See `RolloutGroup`."""
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_consumer

        named = iter([(name, (list(shape), dtype)) for name, shape, dtype in wanted])
        packed_nccl_broadcast_consumer(named, self._group, 0, load, PACKED_BYTES, device=self._device)
