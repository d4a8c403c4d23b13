"""Which inference node answers a call: pure, from the nodes' last heartbeats."""

from collections.abc import Iterable
from hashlib import blake2b

from schemas.events import Heartbeat

READY = "ready"


def choose(nodes: Iterable[Heartbeat], model: str, rollout: str, pinned: int | None) -> Heartbeat | None:
    """The node a rollout sticks to while the set of nodes stays the same (rendezvous hashing); None: hold the call.

    A pinned rollout goes only where its version is served.
    """
    fit = [
        node
        for node in nodes
        if node.state == READY and node.model == model and node.address and pinned in (None, node.version)
    ]
    return max(fit, key=lambda node: _weight(rollout, node.id), default=None)


def served(nodes: Iterable[Heartbeat]) -> set[str]:
    """Names of all models some living node serves or will serve."""
    return {node.model for node in nodes if node.model}


def _weight(rollout: str, node: str) -> bytes:
    return blake2b(f"{rollout}\0{node}".encode(), digest_size=8).digest()
