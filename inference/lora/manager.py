"""Several LoRA versions in one engine: the base is loaded once, each version under its own name.

Nothing is paused for that: the engine loads adapters between two steps. Calls in flight finish on the version they
started with, and new ones go to the newest. A version is unloaded when it is not among the newest and its last call
has ended.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lightningbus.inference.engine.base import Engine, EngineError
from lightningbus.inference.engine.peft import write_directory
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.lora.shared_base import SharedBase
from lightningbus.inference.version_registry import LoadedVersions
from lightningbus.schemas.weights.events import ReleaseState
from lightningbus.schemas.weights.release_policy import is_revoked

log = logging.getLogger(__name__)

ReplaceWeights = Callable[[Sequence[Path], int], Awaitable[float]]
"""Replaces the engine's weights by those of files, as a version; returns the seconds generation was paused."""


class LoraManager:
    """One model's adapters in an engine; outlives the engine, so that the next one loads them again."""

    def __init__(
        self,
        versions: LoadedVersions,
        max_rank: int,
        directory: Path,
        model: ServedModel,
        engine: Engine,
        base: SharedBase,
    ) -> None:
        """Prepare the manager. ``max_rank``: the largest rank that the engine accepts.

        ``directory`` holds adapters in PEFT's form, and is emptied first. ``base`` is the one that ``engine`` has
        loaded.
        """
        self._versions, self._max_rank, self._directory = versions, max_rank, directory
        self._model, self._engine, self._base = model, engine, base
        self._engine_lock = asyncio.Lock()
        self._previous_engine: tuple[Path | None, tuple[int, ...]] = (None, ())
        """Base and versions of the previous engine."""
        self._pending_deletion: set[int] = set()
        """Versions unloaded since the last load; their files are kept until the next one."""
        shutil.rmtree(directory, ignore_errors=True)

    def on_engine_restart(self) -> None:
        """Record that the new engine has loaded nothing."""
        if self._base.path is not None:
            self._previous_engine = (self._base.path, self._versions.routable)
        self._versions.clear()

    async def load_version(self, files: Sequence[Path], version: int, replace: ReplaceWeights) -> float:
        """Load a version: adapters beside those of the same base; anything else replaces all weights.

        Returns the seconds generation was paused, at most. Raises `ValueError` or `OSError` if the version cannot be
        loaded and the previous ones go on serving, else `EngineError`.
        """
        base, *adapters = files
        if not adapters:
            self._base.check_replaceable(self._model.name)
            if self._base.path is None:
                return await replace(files, version)
            return await self._replace_base(base, version, replace, has_adapters=False)
        async with self._base.lock:
            self._delete_unused_dirs()
            if base != self._base.path or version not in self._versions:
                write_directory(adapters[0], self._adapter_dir(version), self._max_rank)
            self._base.claim(self._model.name, base)
            if base != self._base.path:
                return await self._replace_base(base, version, replace, has_adapters=True)
        for restored in self._to_restore(base, version):  # the base was loaded for another model
            await self._load(restored)
        return await self._add(version)

    async def _replace_base(self, base: Path, version: int, replace: ReplaceWeights, *, has_adapters: bool) -> float:
        # Without calls: one in flight would continue with its adapters on a base that is not theirs.
        async with self._model.drained():
            started_at = time.monotonic()
            async with self._engine_lock:
                for loaded in self._versions.loaded:
                    await self._unload(loaded)
            await replace([base], version)
            self._base.path = base if has_adapters else None
            if has_adapters:
                self._model.version = None  # the base alone is no version
                for restored in (*self._to_restore(base, version), version):
                    await self._load(restored)
            return time.monotonic() - started_at

    def apply_release_state(self, release: ReleaseState) -> None:
        """Exclude from new calls the versions that may not be served, loaded already or later."""
        revoked = {decision.version for decision in release.decisions if is_revoked(release, decision.version)}
        self._versions.block(lambda version: version in revoked or release.pinned not in (None, version))

    async def unload_loop(self) -> None:
        """Unload evictable versions until cancelled; raises `EngineError`."""
        while True:
            async with self._engine_lock:
                # Recomputed after each: a version that was evictable a moment ago may serve calls again.
                while evictable := self._versions.evictable():
                    await self._unload(evictable[0])
            await self._versions.changed.wait()

    async def _add(self, version: int) -> float:
        if version not in self._versions and not self._versions.has_capacity:
            log.info("version %d waits until the calls of an older one have ended", version)
            with self._versions.pending_load():
                while not self._versions.has_capacity:
                    await self._versions.changed.wait()
        started_at = time.monotonic()
        try:
            await self._load(version)
        except EngineError as error:
            raise ValueError(f"the engine rejects the adapters: {error}") from error
        return time.monotonic() - started_at

    async def _load(self, version: int) -> None:
        name, path = self._versions.name(version), self._adapter_dir(version)
        async with self._engine_lock:
            if version not in self._versions:  # else it is loaded already, and becomes the newest
                await self._engine.load_adapter(name, path)
                self._pending_deletion.clear()
            self._versions.add(version)

    async def _unload(self, version: int) -> None:
        self._versions.mark_draining(version)
        await self._engine.unload_adapter(self._versions.name(version))
        self._versions.remove(version)
        self._pending_deletion.add(version)

    def _to_restore(self, base: Path, newest: int) -> list[int]:
        """Return, once, the versions that the previous engine had loaded on the same base."""
        (previous_base, versions), self._previous_engine = self._previous_engine, (None, ())
        return [version for version in versions if previous_base == base and version != newest]

    def _adapter_dir(self, version: int) -> Path:
        return self._directory / self._versions.name(version)

    def _delete_unused_dirs(self) -> None:
        """Delete the adapters that no engine reads any more.

        After a client disconnects, an engine may keep the call for a moment, and read its adapters again: they are kept
        until the next version but one.
        """
        needed = {
            self._adapter_dir(version)
            for version in (*self._versions.loaded, *self._pending_deletion, *self._previous_engine[1])
        }
        for path in self._directory.glob("*"):
            if path not in needed:
                shutil.rmtree(path, ignore_errors=True)
