"""Inference nodes that reject this runner's API key: named at once, and skipped while there are others."""

import logging
from collections.abc import Iterable

from lightningbus.schemas.fleet import Heartbeat

log = logging.getLogger(__name__)


class RejectingNodes:
    """Nodes that reject the runner's key. A node reads its key at start, so the entry belongs to its process.

    The nodes of several models in one process share its address.
    """

    def __init__(self, has_key: bool) -> None:
        self._has_key = has_key
        self._processes: set[tuple[str, int]] = set()

    def add(self, node: Heartbeat) -> str:
        """Add a node that rejected the key; return the reason as a sentence, logged the first time."""
        reason = self._problem_of(node)
        if (node.address, node.pid) not in self._processes:
            self._processes.add((node.address, node.pid))
            log.error("%s: calls wait for other nodes; give the runner the file of the nodes' key", reason)
        return reason

    def remove(self, node: Heartbeat) -> None:
        """Forget a node that has answered."""
        self._processes.discard((node.address, node.pid))

    def except_rejecting(self, nodes: Iterable[Heartbeat]) -> list[Heartbeat]:
        """Select the nodes that have not rejected the key."""
        return [node for node in nodes if (node.address, node.pid) not in self._processes]

    def has_all_of_a_model(self, nodes: Iterable[Heartbeat]) -> bool:
        """Return whether all nodes of some model have rejected the key, so that its calls wait."""
        nodes = list(nodes)
        return not {node.model for node in nodes} <= {node.model for node in self.except_rejecting(nodes)}

    def problem(self, nodes: Iterable[Heartbeat]) -> str:
        """Explain why one of these nodes rejects the key; empty if none does."""
        return next((self._problem_of(node) for node in nodes if (node.address, node.pid) in self._processes), "")

    def _problem_of(self, node: Heartbeat) -> str:
        if self._has_key:
            return f"{node.id} refuses the inference API key of this runner (inference_api_key_file)"
        return f"{node.id} asks for an inference API key, and this runner has none (inference_api_key_file)"
