"""The files of versions on this node: fetched whole, or put together of the one held and what changed since."""

import asyncio
import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from bus.client import Bus
from bus.errors import BusError
from bus.verified_download import verifying
from bus.weights.transports.base import Transport
from bus.weights.transports.factory import transport
from schemas.weights.delta import DeltaError, apply_deltas
from schemas.weights.events import Blob, DeltaLink, WeightManifest

log = logging.getLogger(__name__)


class WeightCache:
    """A directory of verified files; see the module."""

    def __init__(self, bus: Bus, model: str, directory: Path) -> None:
        self._model, self._directory = model, directory
        self._bases: set[Path] = set()  # fetched and verified by this process
        self._delta_base: tuple[str, Path] | None = None
        """The newest whole file, by its fingerprint: deltas may start from here."""
        self._source = cache(partial(transport, bus))  # which may hold connections

    async def ensure(self, manifest: WeightManifest) -> list[Path]:
        """What the engine is to load: all weights, or a base and its adapters.

        Raises `BusError`, `DeltaError`, `OSError`, or `ValueError` for a manifest this node cannot read.
        """
        if len(manifest.blobs) != (2 if manifest.kind == "lora" else 1) or (manifest.kind == "delta") != bool(
            manifest.chain
        ):
            raise ValueError(f"version {manifest.version} is of a kind this node cannot read")
        source = self._source(manifest.transport, manifest.location)
        path = self._directory / f"{self._model}-{manifest.version:08d}.safetensors"
        *base, own = manifest.blobs
        files = [await self._base(source, blob) for blob in base]
        if manifest.kind == "delta":
            links = (*manifest.chain, DeltaLink(version=manifest.version, fingerprint=manifest.fingerprint, blob=own))
            await self._apply_chain(source, links, path)
        else:
            await source.get(own, path)
        if manifest.fingerprint:
            self._delta_base = (manifest.fingerprint, path)
        return [*files, path]

    def clear(self) -> None:
        """Make the directory, without what an earlier life left half-written."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(".*"):
            left.unlink(missing_ok=True)

    def evict_except(self, files: Sequence[Path]) -> None:
        """Other versions are not needed any more, but for one that deltas may start from."""
        for old in self._directory.glob("*.safetensors"):
            if old not in files and (self._delta_base is None or old != self._delta_base[1]):
                old.unlink(missing_ok=True)

    async def _base(self, source: Transport, blob: Blob) -> Path:
        path = self._directory / f"{self._model}-base-{blob.sha256[:16]}.safetensors"
        if path not in self._bases or not path.exists():
            await source.get(blob, path)
            self._bases.add(path)
        return path

    async def _apply_chain(self, source: Transport, links: Sequence[DeltaLink], path: Path) -> None:
        """From the version held if the chain leads over it; else, or if that fails, from the chain's whole one."""
        content, held = self._delta_base or ("", path)
        since = [place for place, link in enumerate(links) if link.fingerprint == content]
        if since:
            try:
                return await self._reconstruct(source, held, links[since[-1] + 1 :], path)
            except (BusError, DeltaError, OSError) as error:
                log.warning("version %d: %s; starts from whole version %d", links[-1].version, error, links[0].version)
        anchor = self._directory / f".anchor-{path.name}"
        try:
            await source.get(links[0].blob, anchor)
            await self._reconstruct(source, anchor, links[1:], path)
        finally:
            anchor.unlink(missing_ok=True)

    async def _reconstruct(self, source: Transport, base: Path, links: Sequence[DeltaLink], path: Path) -> None:
        deltas = [self._directory / f".delta-{link.version:08d}" for link in links]
        unproven = self._directory / f".unproven-{path.name}"
        try:
            for link, delta in zip(links, deltas, strict=True):
                await source.get(link.blob, delta)
            with verifying():
                content = await asyncio.to_thread(apply_deltas, base, deltas, unproven)
            if links and content != links[-1].fingerprint:
                raise DeltaError(f"version {links[-1].version} was put together and is not what was published")
            unproven.replace(path)
        finally:
            for left in (*deltas, unproven):
                left.unlink(missing_ok=True)
