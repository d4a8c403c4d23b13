"""What a subscriber drives: an engine that can be given versions, and what is to know of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from inference.weights.canary import Canary
from schemas.weights.events import ReleaseState, WeightManifest


class WeightTarget(Protocol):
    """What is kept at a version, and told of it. `inference.node.Node` is one."""

    @property
    def canary(self) -> Canary | None:
        """By which versions are tried; None: none is tried here."""
        ...

    @property
    def needs_swap_lock(self) -> bool:
        """Whether every swap waits for this node's turn, also one for which no call stands still."""
        ...

    async def load_files(self, files: Sequence[Path], version: int) -> float:
        """Load verified files as a version: all weights, or a base and its adapters.

        Returns the seconds generation stood still. Raises `inference.engine.vllm_server.EngineError`, or `OSError` or
        `ValueError` if the version before goes on serving.
        """
        ...

    async def join_broadcast(self, manifest: WeightManifest) -> float | None:
        """Bring a version into the engine by the broadcast that its manifest offers.

        Returns the seconds generation stood still, or None: it is to be had by its files.
        """
        ...

    def on_release_state(self, release: ReleaseState) -> None:
        """Be told what holds of all versions, again and again."""
        ...

    async def on_activated(self) -> None:
        """Be told that a version is served."""
        ...
