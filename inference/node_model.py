"""One model of a node: its state, its heartbeat, and the updater that brings its versions into the engine."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import HeartbeatPublisher
from lightningbus.bus.fleet.node_state import NodeEvent, next_state
from lightningbus.bus.weights.version_cache import BaseFiles
from lightningbus.common.observability import metrics
from lightningbus.inference.audit_watch import watch_audits
from lightningbus.inference.engine.base import BroadcastContent, Engine, EngineRejectedError, WeightSource
from lightningbus.inference.engine.broadcast_seats import find_assignment
from lightningbus.inference.frozen_watch import IgnoredVersions
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.version_stamp import flush_pending_chunks
from lightningbus.inference.lora.manager import LoraManager
from lightningbus.inference.lora.shared_base import SharedBase
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.version_registry import LoadedVersions
from lightningbus.inference.weights.canary import EngineCanary
from lightningbus.inference.weights.kv_cache import KvCacheChoice
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.schemas.weights.events import FROZEN_VERSION, KvCacheOutcome, ReleaseState, WeightManifest

log = logging.getLogger(__name__)


class NodeModel:
    """A model that the engine of a node serves; a `lightningbus.inference.weights.target.WeightTarget`."""

    def __init__(self, bus: Bus, node_id: str, name: str, settings: InferenceSettings, engine: Engine) -> None:
        """Prepare the model ``name`` on the node ``node_id``."""
        self._bus, self._settings, self._engine = bus, settings, engine
        self.id = node_id if len(settings.models) == 1 else f"{node_id}:{name}"
        """Id in heartbeats. A node of several models sends one for each, because readers route and count by model."""
        lora = settings.lora
        self._versions = LoadedVersions(name, lora.max_loaded_versions) if lora else None
        self.served = ServedModel(name, self._versions)
        self.canary = EngineCanary(engine, self.served, self.transition)
        """See `lightningbus.inference.weights.target.WeightTarget`."""
        self.needs_swap_lock = lora is None
        """Loading adapters pauses no call, so it needs no lock; see `lightningbus.inference.weights.target`."""
        self.kv_cache: KvCacheOutcome = ""
        """See `lightningbus.inference.weights.target.WeightTarget`."""
        self._kv_cache_choice = KvCacheChoice(settings.kv_cache_on_swap, settings.kv_cache_max_change)
        self._lora: LoraManager | None = None
        self._num_swaps = 0
        self._last_rendezvous = ""
        """A rendezvous that failed is not joined again."""
        self._updater: WeightUpdater | None = None
        self._ignored = IgnoredVersions(bus, name)
        self.heartbeat: HeartbeatPublisher
        """Heartbeat publisher; set before an engine is started."""

    def use_adapters(self, base: SharedBase) -> None:
        """Load versions as adapters on a base, which other models of the node may share."""
        lora, versions = self._settings.lora, self._versions
        assert lora is not None and versions is not None
        directory = self._settings.work_dir / "adapters" / self.served.name
        self._lora = LoraManager(versions, lora.rank, directory, self.served, self._engine, base)

    def on_engine_restart(self) -> None:
        """Record that the new engine has loaded nothing."""
        self.served.version = None
        if self._lora:
            self._lora.on_engine_restart()

    async def serve_frozen(self) -> None:
        """Serve the weights that the engine has started with."""
        self.served.version = FROZEN_VERSION
        metrics.inference_weight_version.labels(self.served.name).set(FROZEN_VERSION)
        await self.transition("weights_applied")

    def loops(
        self, engine_id: str, bases: BaseFiles, stop_suspect: Callable[[], Awaitable[None]]
    ) -> list[Awaitable[None]]:
        """Return the loops to run beside the engine; one ends only by `EngineError`."""
        audits = watch_audits(self._bus, self.served.name, engine_id, stop_suspect)
        if self._settings.frozen:
            return [audits, self._ignored.watch()]
        directory = self._settings.work_dir / "weights" / self.served.name
        self._updater = WeightUpdater(self._bus, self.id, self.served.name, directory, self, bases)
        return [audits, self._updater.run(), *([self._lora.unload_loop()] if self._lora else [])]

    async def load_files(
        self, files: Sequence[Path], version: int, change: float | None = None, fingerprint: str = ""
    ) -> float:
        """See `lightningbus.inference.weights.target.WeightTarget`."""
        self.kv_cache = ""  # adapters beside those that are served change no cache
        pause_seconds = await (
            self._lora.load_version(files, version, self._load_in_place)
            if self._lora
            else self._load_in_place(files, version, change, fingerprint)
        )
        self._num_swaps += 1
        return pause_seconds

    async def join_broadcast(self, manifest: WeightManifest) -> float | None:
        """Pause the engine while it waits for the others; see `lightningbus.inference.weights.target`."""
        plan, capability, started_at = manifest.broadcast, self._engine.capabilities.broadcast, time.monotonic()
        assignment = find_assignment(plan, self.id, capability) if capability is not None else None
        if plan is None or assignment is None or plan.rendezvous_key == self._last_rendezvous or self._lora is not None:
            return None
        self._last_rendezvous = plan.rendezvous_key
        try:
            await self._engine.join_broadcast(plan, assignment)
        except EngineRejectedError as error:
            log.warning("version %d is fetched as files instead: %s", manifest.version, error)
            return None
        rendezvous_seconds = time.monotonic() - started_at
        content = BroadcastContent(manifest.fingerprint, plan.size)
        load_seconds = await self._load_in_place(content, manifest.version, manifest.change)
        self._num_swaps += 1
        return rendezvous_seconds + load_seconds

    async def _load_in_place(
        self, source: WeightSource, version: int, change: float | None = None, fingerprint: str = ""
    ) -> float:
        """Load weights; requests in flight are paused, keep their tokens, and continue with the new weights.

        An `EngineError` ends the engine: it stays paused until the node stops it, since its weights are loaded in part.
        """
        started_at = time.monotonic()
        self.kv_cache = self._kv_cache_choice.record_swap(change)
        await self._engine.pause(recompute_kv_cache=self.kv_cache == "recomputed")
        await self._engine.load_weights(source, version, fingerprint)
        await flush_pending_chunks()
        self.served.version = version
        await self._engine.resume()
        return time.monotonic() - started_at

    def on_release_state(self, release: ReleaseState) -> None:
        """See `lightningbus.inference.weights.target.WeightTarget`."""
        if self._lora:
            self._lora.apply_release_state(release)

    async def on_activated(self) -> None:
        """See `lightningbus.inference.weights.target.WeightTarget`."""
        await self.transition("weights_applied")

    async def transition(self, event: NodeEvent) -> None:
        """Move to the next state, and publish it at once."""
        self.served.state = next_state(self.served.state, event)
        await self.heartbeat.send_now()

    def describe(self, address: str, engine_id: str, num_in_flight: int) -> dict[str, Any]:
        """Return the heartbeat's fields. ``num_in_flight`` counts calls of all models, since they share the engine."""
        engine = self._engine.capabilities
        can_join = engine.broadcast is not None and not self._lora and not self._settings.frozen
        problem = self._updater.last_error if self._updater else self._ignored.problem
        return {
            "state": self.served.state,
            "address": self._settings.advertise_url or address,
            "model": self.served.name,
            "version": self.served.newest,
            "status": {
                "inflight": num_in_flight,
                "max_num_seqs": self._settings.max_num_seqs,
                "swaps": self._num_swaps,
                "engine_id": engine_id,
                "max_model_len": engine.max_model_len,
                "problem": problem[:120],
                **({"parsers": list(engine.parsers)} if engine.parsers else {}),
                **({"frozen": True} if self._settings.frozen else {}),
                **({"versions": list(self.served.versions)} if self._lora else {}),
                **({"broadcast": to_builtins(engine.broadcast)} if can_join else {}),
                **({"needs_full_weights": True} if self._updater and self._updater.needs_full_weights else {}),
            },
        }
