"""The target of the weight updater: an engine that loads versions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lightningbus.inference.weights.canary import Canary
from lightningbus.schemas.weights.events import KvCacheOutcome, ReleaseState, WeightManifest


class WeightTarget(Protocol):
    """Loads versions and serves them. `lightningbus.inference.node.Node` is one."""

    @property
    def canary(self) -> Canary | None:
        """Runs canary trials; None: this node runs none."""
        ...

    @property
    def needs_swap_lock(self) -> bool:
        """Whether every swap needs the lock, also one that pauses no call."""
        ...

    @property
    def kv_cache(self) -> KvCacheOutcome:
        """Effect of the last swap on the KV cache of calls in flight; empty: none."""
        ...

    async def load_files(
        self, files: Sequence[Path], version: int, change: float | None = None, fingerprint: str = ""
    ) -> float:
        """Load verified files as a version: all weights, or a base and its adapters.

        ``change``: relative change from the loaded version, see `WeightManifest.change`; None: unknown.
        ``fingerprint``: see `WeightManifest.fingerprint`; empty: unknown.

        Returns the seconds generation was paused. Raises `lightningbus.inference.engine.base.EngineError`, or
        `OSError` or `ValueError` if the previous version continues to be served.
        """
        ...

    async def join_broadcast(self, manifest: WeightManifest) -> float | None:
        """Receive a version by the broadcast that its manifest announces.

        Returns the seconds generation was paused, or None: the version must be fetched as files.
        """
        ...

    def on_release_state(self, release: ReleaseState) -> None:
        """Apply the release state of all versions; called repeatedly."""
        ...

    async def on_activated(self) -> None:
        """React to a version that is now served."""
        ...
