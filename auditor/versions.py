"""Weight versions into the reference model: one at a time, fetched from the bus as nodes fetch them."""

import asyncio
from pathlib import Path

from lightningbus.auditor.reference_model import ReferenceModel
from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.version_cache import WeightCache
from lightningbus.schemas.weights.events import FROZEN_VERSION, WeightManifest


class VersionLoader:
    """Loads versions; each life of a learner may have published one of the same number."""

    def __init__(
        self, bus: Bus, model: str, directory: Path, reference: ReferenceModel, is_frozen: bool = False
    ) -> None:
        """Prepare to load versions into ``reference``; with ``is_frozen`` it keeps its only version."""
        self._registry, self._cache = WeightRegistry(bus, model), WeightCache(bus, model, directory)
        self._reference, self._is_frozen = reference, is_frozen
        self._loaded: WeightManifest | None = None
        self._cache.clear()

    async def candidates(self, version: int) -> list[WeightManifest]:
        """List the manifests of this number with different weights, newest first; raise `BusError` if there is none.

        A frozen model needs none: ValueError for a version that it does not have.
        """
        if self._is_frozen:
            if version != FROZEN_VERSION:
                raise ValueError(f"version {version} is not that of a frozen model, {FROZEN_VERSION}")
            return []
        manifests = [manifest for manifest, _ in await self._registry.manifests_of(version)]
        by_weights = {_weights_of(manifest): manifest for manifest in reversed(manifests)}
        return list(reversed(by_weights.values()))

    def is_loaded(self, version: int) -> bool:
        """Return whether the version loaded last has this number."""
        if self._is_frozen:
            return version == FROZEN_VERSION
        return self._loaded is not None and self._loaded.version == version

    async def load(self, manifest: WeightManifest) -> None:
        """Make it the model's weights; raises as `WeightCache.ensure`, or ValueError if they do not fit the model."""
        if self._loaded is not None and _weights_of(self._loaded) == _weights_of(manifest):
            return
        self._loaded = None
        files = await self._cache.ensure(manifest)
        await asyncio.to_thread(self._reference.load, files)
        self._cache.evict_except(files)
        self._loaded = manifest


def _weights_of(manifest: WeightManifest) -> object:
    return manifest.fingerprint or tuple(blob.sha256 for blob in manifest.blobs)
