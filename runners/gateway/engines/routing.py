"""Choice of the inference node for a call, by the nodes' last heartbeats. Pure."""

from collections.abc import Callable, Iterable
from hashlib import blake2b

from lightningbus.bus.fleet.node_state import is_ready, serves_version
from lightningbus.schemas.fleet import Heartbeat


def select_node(
    nodes: Iterable[Heartbeat],
    model: str,
    rollout: str,
    last: str,
    pinned: int | None,
    in_flight: Callable[[str], int],
    preferred: int | None = None,
) -> Heartbeat | None:
    """Choose the node of the rollout's last call, for its cached prefix, else the least loaded; None: no node fits.

    A pinned rollout goes only where its version is, one that prefers a version where it is, or else anywhere.
    ``in_flight`` counts this runner's calls at a node, and counts first: heartbeats are up to a second old, and by them
    alone all runners would choose the same node. Equally loaded nodes share rollouts evenly.
    """
    fit = [node for node in nodes if is_ready(node.state) and node.model == model and node.address]
    if pinned is not None:
        fit = [node for node in fit if serves_version(node, pinned)]
    elif preferred is not None:
        fit = [node for node in fit if serves_version(node, preferred)] or fit
    for node in fit:
        if node.id == last:
            return node
    return min(
        fit, key=lambda node: (_num_in_flight(node, in_flight), _rendezvous_hash(rollout, node.id)), default=None
    )


def missing_version(nodes: Iterable[Heartbeat], model: str, pinned: int | None) -> str:
    """Explain which version a pinned call waits for, and which are served; empty if the pin is not the reason."""
    ready = [node for node in nodes if is_ready(node.state) and node.model == model]
    if pinned is None or not ready or any(serves_version(node, pinned) for node in ready):
        return ""
    versions: set[int] = set()
    for node in ready:
        several = node.status.get("versions")
        versions.update(several if isinstance(several, list) else [] if node.version is None else [node.version])
    served = ", ".join(map(str, sorted(versions))) or "none"
    return f"no inference node serves version {pinned} of {model!r}, to which the task is pinned (served: {served})"


def missing_model(nodes: Iterable[Heartbeat], model: str) -> str:
    """Explain which model a call waits for, and which are served; empty if a node serves it, or there are no nodes."""
    served = {node.model for node in nodes if node.model}
    if not served or model in served:
        return ""
    return f"no inference node serves {model!r}, which the task may call (served: {', '.join(sorted(served))})"


def _num_in_flight(node: Heartbeat, in_flight: Callable[[str], int]) -> tuple[int, int]:
    num_in_flight = node.status.get("inflight")
    return in_flight(node.id), num_in_flight if isinstance(num_in_flight, int) else 0


def _rendezvous_hash(rollout: str, node: str) -> bytes:
    return blake2b(f"{rollout}\0{node}".encode(), digest_size=8).digest()
