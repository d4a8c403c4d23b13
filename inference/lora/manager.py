"""Versions of adapters beside one another: the base is loaded once, each version by vLLM's own loader under a name.

Nothing is paused for that: vLLM takes adapters in between two steps. Calls in flight end on the version they began
with, new ones go to the newest, and a version goes when it is not among the newest and its last call has ended.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from inference.engine.peft import write_directory
from inference.engine.vllm_server import EngineError
from inference.gateway.server import Gateway
from inference.version_registry import LoadedVersions
from schemas.weights.events import ReleaseState
from schemas.weights.release_policy import is_revoked

log = logging.getLogger(__name__)

Replace = Callable[[Sequence[Path], int], Awaitable[float]]
"""Puts files in place of the engine's weights, as a version; returns the seconds generation stood still."""


class Tell(Protocol):
    """POST to one of vLLM's control routes; raises `EngineError`."""

    def __call__(self, path: str, body: object = None) -> Awaitable[None]: ...


class LoraManager:
    """What an engine holds of a model's adapters; outlives the engine, so that the next one is given it again."""

    def __init__(self, residents: LoadedVersions, rank: int, directory: Path, gateway: Gateway, tell: Tell) -> None:
        """``rank``: the largest the engine takes; ``directory``: where adapters lie for vLLM, emptied first."""
        self._residents, self._rank, self._directory = residents, rank, directory
        self._gateway, self._tell = gateway, tell
        self._telling = asyncio.Lock()
        self._base: Path | None = None
        self._before: tuple[Path | None, tuple[int, ...]] = (None, ())
        """Base and versions of the engine before this one."""
        self._left: set[int] = set()
        """Versions that have gone since the last one came, and lie there until the next one has."""
        shutil.rmtree(directory, ignore_errors=True)

    def on_engine_restart(self) -> None:
        """A new engine holds nothing."""
        if self._base is not None:
            self._before = (self._base, self._residents.routable)
        self._base = None
        self._residents.clear()

    async def load_version(self, files: Sequence[Path], version: int, replace: Replace) -> float:
        """Load a version: adapters beside those of the same base, anything else in place of all there is.

        Returns the seconds generation stood still, at most. Raises `ValueError` or `OSError` where a version cannot be
        loaded and what was held goes on serving, else `EngineError`.
        """
        base, *adapters = files
        if not adapters and self._base is None:
            return await replace(files, version)
        if adapters:
            self._sweep()
            if base != self._base or version not in self._residents:
                write_directory(adapters[0], self._place(version), self._rank)
            if base == self._base:
                return await self._add(version)
        # A call that went on would have its adapters on a base that is not theirs.
        async with self._gateway.drained():
            started = time.monotonic()
            async with self._telling:
                for held in self._residents.loaded:
                    await self._unload(held)
            await replace([base], version)
            self._base = base if adapters else None
            if adapters:
                self._gateway.version = None  # the base by itself is no version
                for held in (*self._again(base, version), version):
                    await self._load(held)
            return time.monotonic() - started

    def apply_release_state(self, release: ReleaseState) -> None:
        """What may not be served answers no new call, be it held already or not."""
        revoked = {said.version for said in release.decisions if is_revoked(release, said.version)}
        self._residents.block(lambda version: version in revoked or release.pinned not in (None, version))

    async def unload_loop(self) -> None:
        """Unload for ever whatever may go; raises `EngineError`."""
        while True:
            async with self._telling:
                while (
                    due := self._residents.evictable()
                ):  # each time anew: what was due a moment ago may answer calls again
                    await self._unload(due[0])
            await self._residents.changed.wait()

    async def _add(self, version: int) -> float:
        if version not in self._residents and not self._residents.has_capacity:
            log.info("version %d waits until the calls of an older one have ended", version)
            with self._residents.pending_load():
                while not self._residents.has_capacity:
                    await self._residents.changed.wait()
        started = time.monotonic()
        try:
            await self._load(version)
        except EngineError as error:
            raise ValueError(f"adapters are not taken: {error}") from error
        return time.monotonic() - started

    async def _load(self, version: int) -> None:
        name, place = self._residents.name(version), self._place(version)
        async with self._telling:
            if version not in self._residents:  # or it comes again
                await self._tell("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(place.resolve())})
                self._left.clear()
            self._residents.add(version)

    async def _unload(self, version: int) -> None:
        self._residents.mark_draining(version)
        await self._tell("/v1/unload_lora_adapter", {"lora_name": self._residents.name(version)})
        self._residents.remove(version)
        self._left.add(version)

    def _again(self, base: Path, newest: int) -> list[int]:
        """What the engine before this one held on the same base."""
        (before, versions), self._before = self._before, (None, ())
        return [version for version in versions if before == base and version != newest]

    def _place(self, version: int) -> Path:
        return self._directory / self._residents.name(version)

    def _sweep(self) -> None:
        """Remove what no engine asks for any more.

        A call that was hung up on stays in vLLM's hands for a moment, and vLLM may read its adapters again: so they lie
        there until the next version but one.
        """
        needed = {self._place(version) for version in (*self._residents.loaded, *self._left, *self._before[1])}
        for place in self._directory.glob("*"):
            if place not in needed:
                shutil.rmtree(place, ignore_errors=True)
