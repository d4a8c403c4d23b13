"""The files of weight versions on this node: fetched in full, or reconstructed from a local file and deltas."""

import asyncio
import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.verified_download import timed_verification
from lightningbus.bus.weights.transports.base import Transport
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.schemas.weights.delta import DeltaError, apply_deltas, fingerprint
from lightningbus.schemas.weights.events import Blob, DeltaLink, WeightManifest

log = logging.getLogger(__name__)


class BaseFiles:
    """The bases that adapters are added to, in one directory: models that start from the same one share its file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._verified: set[Path] = set()
        """Fetched and verified by this process."""
        self._needed: dict[str, set[Path]] = {}
        """Files that each model needs."""
        self._lock = asyncio.Lock()

    async def ensure(self, model: str, source: Transport, blob: Blob) -> Path:
        """Return the file, fetched if necessary; raise as `Transport.get`."""
        path = self._directory / f"base.{blob.sha256[:16]}.safetensors"  # a dot: in no name of a model
        self._needed.setdefault(model, set()).add(path)
        async with self._lock:
            if path not in self._verified or not path.exists():
                await source.get(blob, path)
                self._verified.add(path)
        return path

    def evict_except(self, model: str, files: Sequence[Path]) -> None:
        """Keep only these files for a model: remove those that no model needs."""
        self._needed[model] = set(files)
        needed = set().union(*self._needed.values())
        for path in self._directory.glob("base.*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)


class WeightCache:
    """A directory of verified files of one model."""

    def __init__(self, bus: Bus, model: str, directory: Path, bases: BaseFiles | None = None) -> None:
        """Prepare an empty cache; ``bases`` may be shared with other models' caches; default: in the same directory."""
        self._model, self._directory = model, directory
        self._bases = bases or BaseFiles(directory)
        self._delta_base: tuple[str, Path] | None = None
        """Fingerprint and path of the newest full file: deltas may be applied to it."""
        self._transport = cache(partial(open_transport, bus))  # may hold connections

    async def ensure(self, manifest: WeightManifest) -> list[Path]:
        """Return the files to load, fetched if necessary: all weights, or a base and its adapters.

        Raises `BusError`, `DeltaError`, `OSError`, or `ValueError` for a manifest this node cannot read.
        """
        if len(manifest.blobs) != (2 if manifest.kind == "lora" else 1) or (manifest.kind == "delta") != bool(
            manifest.chain
        ):
            raise ValueError(f"version {manifest.version} is of a kind this node cannot read")
        source = self._transport(manifest.transport, manifest.location)
        path = self._directory / f"{self._model}-{manifest.version:08d}.safetensors"
        *base_blobs, blob = manifest.blobs
        bases = [await self._bases.ensure(self._model, source, base_blob) for base_blob in base_blobs]
        if manifest.kind == "delta":
            links = (*manifest.chain, DeltaLink(version=manifest.version, fingerprint=manifest.fingerprint, blob=blob))
            await self._apply_chain(source, links, path)
        else:
            await source.get(blob, path)
            await self._verify(manifest, path)
        if manifest.fingerprint:
            self._delta_base = (manifest.fingerprint, path)
        return [*bases, path]

    def clear(self) -> None:
        """Create the directory, and remove partial files of an earlier process."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for partial_file in self._directory.glob(".*"):
            partial_file.unlink(missing_ok=True)

    def evict_except(self, files: Sequence[Path]) -> None:
        """Remove the files of other versions, except the base of possible deltas."""
        self._bases.evict_except(self._model, files)
        for path in self._directory.glob(f"{self._model}-*.safetensors"):
            if path not in files and (self._delta_base is None or path != self._delta_base[1]):
                path.unlink(missing_ok=True)

    async def _verify(self, manifest: WeightManifest, path: Path) -> None:
        """Compare a file that came whole with its manifest's fingerprint; raise `ValueError` if they differ."""
        if not manifest.fingerprint:
            return
        with timed_verification():
            content = await asyncio.to_thread(fingerprint, path)
        if content != manifest.fingerprint:
            path.unlink()
            raise ValueError(f"version {manifest.version} has other weights than its manifest says: publish it again")

    async def _apply_chain(self, source: Transport, links: Sequence[DeltaLink], path: Path) -> None:
        """Apply the deltas to the local file; if that fails or the chain lacks it, to the chain's full version."""
        known, base = self._delta_base or ("", path)
        positions = [index for index, link in enumerate(links) if link.fingerprint == known]
        if positions:
            try:
                return await self._reconstruct(source, base, links[positions[-1] + 1 :], path)
            except (BusError, DeltaError, OSError) as error:
                log.warning(
                    "version %d: %s; reconstructing it from full version %d", links[-1].version, error, links[0].version
                )
        anchor = self._directory / f".anchor-{path.name}"
        try:
            await source.get(links[0].blob, anchor)
            await self._reconstruct(source, anchor, links[1:], path)
        finally:
            anchor.unlink(missing_ok=True)

    async def _reconstruct(self, source: Transport, base: Path, links: Sequence[DeltaLink], path: Path) -> None:
        deltas = [self._directory / f".delta-{link.version:08d}" for link in links]
        unverified = self._directory / f".unverified-{path.name}"
        try:
            for link, delta in zip(links, deltas, strict=True):
                await source.get(link.blob, delta)
            with timed_verification():
                content = await asyncio.to_thread(apply_deltas, base, deltas, unverified)
            if links and content != links[-1].fingerprint:
                raise DeltaError(f"version {links[-1].version} was reconstructed and is not what was published")
            unverified.replace(path)
        finally:
            for partial_file in (*deltas, unverified):
                partial_file.unlink(missing_ok=True)
