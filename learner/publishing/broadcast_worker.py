"""Holds the store of broadcasts, and is rank 0 of their groups: a program for ``python -m``.

A process of its own, for a collective whose peer is gone may never return: it is given up by ending the process, and
the trainer, its GPU's memory included, has no part in it. Orders come by standard input, a line of JSON each.
"""

import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from lightningbus.schemas.weights.events import Backend
from lightningbus.schemas.weights.safetensors_header import parse_tensors, read_header


class SendRequest(msgspec.Struct, frozen=True):
    """Send a file to a group; the file must stay as it is until the answer."""

    group: str
    rendezvous_key: str
    world_size: int
    timeout_seconds: float
    path: str


class SendReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of an order; the first reply answers none, and has the store's port."""

    port: int = 0
    error: str = ""
    missing_ranks: tuple[int, ...] = ()
    """Ranks that did not come."""


def bytes_of(path: Path) -> tuple[bytes, Iterator[tuple[str, Any]]]:
    """Return the header of a safetensors file, and each tensor's bytes as ``uint8``, in file order."""
    import torch

    header, size = read_header(path), path.stat().st_size
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch has no read-only tensors
    whole = torch.frombuffer(content, dtype=torch.uint8)[len(header) :]
    return header, ((name, whole[slice(*tensor.data_offsets)]) for name, tensor in parse_tensors(header, size).items())


class Sender:
    """The store, and the group as it was last time."""

    def __init__(self, backend: Backend, host: str, port: int) -> None:
        """Prepare to send; raise OSError for a port in use, RuntimeError or ImportError where NCCL cannot run."""
        import torch

        from lightningbus.bus.weights import collective

        if backend == "nccl":
            if not torch.cuda.is_available():
                raise RuntimeError("nccl needs a GPU, and torch finds none")
            import vllm.distributed.weight_transfer.nccl_common  # noqa: F401 - now, not while others wait
        self._backend, self._host, self._collective = backend, host, collective
        self.store = collective.create_store(host, port)
        self._group: Any = None
        self._name = self._header = ""

    def send(self, order: SendRequest) -> None:
        """Meet and broadcast; raises `RendezvousTimeoutError`, RuntimeError, OSError, ValueError."""
        header, tensors = bytes_of(Path(order.path))
        if self._header:
            self.store.delete_key(self._header)  # not before: who is slow reads it when all has been sent
        self._header = f"{order.rendezvous_key}/header"
        self.store.set(self._header, header)  # type: ignore[arg-type]
        self._collective.run_rendezvous(self.store, order.rendezvous_key, 0, order.world_size, order.timeout_seconds)
        if order.group != self._name:
            self._group = None  # before the next one is made: it may hold what that needs
            self._group = self._collective.init_group(
                self._backend, self.store, order.group, 0, order.world_size, self._host, order.timeout_seconds
            )
            self._name = order.group
        self._group.send(tensors)

    def missing_nodes(self, order: SendRequest) -> tuple[int, ...]:
        """List the ranks that did not come to a meeting."""
        return tuple(self._collective.missing_ranks(self.store, order.rendezvous_key, order.world_size))


def main(backend: Backend, host: str, port: int) -> None:
    """Answer orders until the input ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries may print; only answers go to the pipe

    def reply(answer: SendReply) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")

    try:
        sender = Sender(backend, host, port)
    except (OSError, RuntimeError, ImportError) as error:
        reply(SendReply(error=str(error)))
        return
    reply(SendReply(port=sender.store.port))
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=SendRequest)
        started = time.monotonic()
        try:
            sender.send(order)
            reply(SendReply())
        except Exception as error:  # any error: the learner then ends this process
            reason = f"{error or type(error).__name__} (after {time.monotonic() - started:.1f} s)"
            reply(SendReply(error=reason, missing_ranks=sender.missing_nodes(order)))


if __name__ == "__main__":
    arguments, where, at = sys.argv[1:]
    assert arguments in get_args(Backend)
    main(arguments, where, int(at))  # type: ignore[arg-type]
