"""The oldest weight version that a token sampled from now on may have. Pure; time is passed in."""

from collections.abc import Iterable

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.schemas.fleet import Heartbeat

SWAP_SECONDS = 60.0
"""A node that serves an older version than another for longer is not waited for: its swap is late or fails."""


class ServedVersion:
    """Versions that the ready nodes of a model serve."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._behind_since: dict[str, float] = {}

    def oldest(self, nodes: Iterable[Heartbeat], now: float) -> int | None:
        """Find the oldest version that ready nodes serve; None if there is none. ``now`` is in seconds."""
        versions = {
            node.id: node.version
            for node in nodes
            if is_ready(node.state) and node.model == self._model and node.version is not None
        }
        newest = max(versions.values(), default=None)
        self._behind_since = {
            node_id: self._behind_since.get(node_id, now) for node_id, version in versions.items() if version != newest
        }
        late = {node_id for node_id, since in self._behind_since.items() if now - since >= SWAP_SECONDS}
        return min((version for node_id, version in versions.items() if node_id not in late), default=None)
