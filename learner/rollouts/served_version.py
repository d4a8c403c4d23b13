"""The oldest weight version that a token sampled from now on may have. Pure; time is passed in."""

from collections.abc import Iterable

from lightningbus.schemas.fleet import Heartbeat

SWAP_SECONDS = 60.0
"""A node that serves an older version than another for longer is not waited for: its swap is late or fails."""
ANSWERING_STATES = ("ready", "suspect")
"""States of a node that may sample with its version: a node that is not heard for a moment samples on."""
STARTING_STATES = ("starting", "awaiting_weights", "canary")
"""States of a node that may have chosen its version already, and does not serve it yet."""


class ServedVersion:
    """Versions that the nodes of a model serve."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._last_oldest: int | None = None
        """The oldest version when a node was last heard."""
        self._behind_since: dict[str, float] = {}
        self._next_when_seen: dict[str, int] = {}
        """The ``next_served`` of the moment in which a node was first seen to start, by node."""

    def oldest(self, nodes: Iterable[Heartbeat], now: float, next_served: int | None = None) -> int | None:
        """Find the oldest version that nodes serve; without them, the oldest that the first node may begin with.

        The first node may have been cut off, and serve the version it had. ``next_served`` is the version that a node
        chooses now; None: there is none. A node that starts may have chosen it long ago, since it loads for a while.
        ``now`` is in seconds.
        """
        nodes = [node for node in nodes if node.model == self._model]
        versions = {
            node.id: node.version for node in nodes if node.state in ANSWERING_STATES and node.version is not None
        }
        self._next_when_seen = {
            node.id: self._next_when_seen.get(node.id, next_served)
            for node in nodes
            if node.state in STARTING_STATES and next_served is not None
        }
        if not versions:
            starts = [*self._next_when_seen.values(), next_served, self._last_oldest]
            return min((version for version in starts if version is not None), default=None)
        newest = max(versions.values(), default=None)
        self._behind_since = {
            node_id: self._behind_since.get(node_id, now) for node_id, version in versions.items() if version != newest
        }
        late = {node_id for node_id, since in self._behind_since.items() if now - since >= SWAP_SECONDS}
        self._last_oldest = min((version for node_id, version in versions.items() if node_id not in late), default=None)
        return self._last_oldest
