"""The inference node: engine, weight updater and gateway, wired together; restarts the engine when it fails."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from bus.client import Bus
from bus.errors import CredentialsError
from bus.fleet.heartbeats import HeartbeatPublisher, default_instance_id
from bus.fleet.node_state import NodeEvent, next_state
from bus.security.secrets import is_loopback, read_key
from common.aio import cancel_and_wait, first_completed
from common.backoff import Backoff, RetryPolicy
from inference.audit_watch import watch_audits
from inference.engine.broadcast_seats import find_assignment, rendezvous_info
from inference.engine.vllm_server import URL, EngineError, EngineKilledError, EngineRejectedError, VllmServer
from inference.gateway.server import Gateway
from inference.lora.manager import LoraManager
from inference.settings import InferenceSettings
from inference.version_registry import LoadedVersions
from inference.weights.canary import EngineCanary
from inference.weights.updater import WeightUpdater
from schemas.weights.events import ReleaseState, WeightManifest

log = logging.getLogger(__name__)

RESTART_POLICY = RetryPolicy(1.0, 30.0)


async def run(bus: Bus, settings: InferenceSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop.

    Raises `EngineError` if vLLM cannot start at all, `AddressInUseError`, `bus.CredentialsError`.
    """
    if not (settings.model_path / "config.json").exists():
        raise EngineError(f"model_path: {settings.model_path} holds no model (no config.json)")
    await Node(bus, settings).run(stop)


def _read_inference_api_key(settings: InferenceSettings) -> str:
    if settings.inference_api_key_file is not None:
        return read_key(settings.inference_api_key_file)
    if not is_loopback(settings.host):
        raise CredentialsError(
            f"host: {settings.host} is reached from other machines, where anybody might use the model: set "
            "inference_api_key_file, to a file of a long random word that runners are given too"
        )
    return ""


class Node:
    """Runs one engine, its gateway and its weight updater."""

    def __init__(self, bus: Bus, settings: InferenceSettings) -> None:
        self._bus = bus
        self._settings = settings
        self.id = default_instance_id(settings.id)
        self._inference_api_key = _read_inference_api_key(settings)
        self._num_swaps = 0
        self._lora: LoraManager | None = None
        self._last_rendezvous = ""
        """A rendezvous that failed is not joined again."""
        self.needs_swap_lock = settings.lora is None
        """See `inference.weights.target.WeightTarget`. Loading adapters pauses no call, so it needs no lock."""
        self.canary: EngineCanary
        """See `inference.weights.target.WeightTarget`."""
        self._engine: VllmServer
        self._gateway: Gateway
        self._updater: WeightUpdater
        self._pulse: HeartbeatPublisher

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until asked to stop; see the function `run`."""
        async with VllmServer(self._settings) as self._engine:
            host, port, max_requests = self._settings.host, self._settings.port, self._settings.max_requests
            lora = self._settings.lora
            versions = LoadedVersions(self._settings.model, lora.max_loaded_versions) if lora else None
            self._gateway = Gateway(
                URL, self._engine.session, host, port, self._inference_api_key, max_requests, versions
            )
            if lora and versions:
                directory = self._settings.work_dir / "adapters"
                self._lora = LoraManager(versions, lora.rank, directory, self._gateway, self._engine.post)
            self.canary = EngineCanary(self._engine, self._settings.model, self._gateway, self._transition)
            async with self._gateway, self._bus.heartbeat("inference", self.id, self._describe) as self._pulse:
                await self._keep_alive(stop)

    async def _keep_alive(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        backoff = Backoff(RESTART_POLICY)
        started_once = False
        while not stopping.done():
            engine_run = asyncio.create_task(self._run_engine())
            await asyncio.wait({engine_run, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not engine_run.done():
                await self._transition("stop")
                await cancel_and_wait(engine_run)
                break
            started_once = started_once or self._gateway.state in ("awaiting_weights", "ready", "canary", "suspect")
            await self._transition("engine_exited")
            await self._engine.stop()
            error = engine_run.exception()
            # An engine that never started may have wrong settings: it is not started again.
            can_restart = started_once or isinstance(error, EngineKilledError)
            if not isinstance(error, EngineError) or not can_restart:
                stopping.cancel()
                raise error or AssertionError("the engine ended without an error")
            delay = backoff.next_delay()
            log.error("%s; starting it again in %g s", error, delay)
            await asyncio.wait({stopping}, timeout=delay)

    async def _run_engine(self) -> None:
        """Start the engine and keep its weights up to date, until it ends; raises `EngineError`."""
        self._gateway.version = None
        if self._lora:
            self._lora.on_engine_restart()
        await self._engine.start()
        assert self._engine.broadcast_capability is not None
        self._gateway.engine_id = f"{self.id}:{self._engine.broadcast_capability.engine}"
        await self._transition("engine_up")
        log.info("node %s: engine is up, waiting for weights of %s", self.id, self._settings.model)
        directory = self._settings.work_dir / "weights"
        self._updater = WeightUpdater(self._bus, self.id, self._settings.model, directory, self)
        exited = asyncio.ensure_future(self._engine.wait_exit())
        audits = watch_audits(self._bus, self._settings.model, self._gateway.engine_id, self._stop_suspect)
        loops = [self._updater.run(), audits, *([self._lora.unload_loop()] if self._lora else [])]
        await first_completed(exited, *loops)
        raise EngineError(f"vLLM ended with {exited.result()}")

    async def _stop_suspect(self) -> None:
        """Serve nobody any more, and stop the engine: what it sampled so far is quarantined."""
        await self._transition("audit_failed")
        await self._engine.stop()

    async def load_files(self, files: Sequence[Path], version: int) -> float:
        """See `inference.weights.target.WeightTarget`."""
        pause_seconds = await (
            self._lora.load_version(files, version, self._load_in_place)
            if self._lora
            else self._load_in_place(files, version)
        )
        self._num_swaps += 1
        return pause_seconds

    async def _load_in_place(self, files: Sequence[Path], version: int) -> float:
        return await self._load({"paths": [str(path.resolve()) for path in files]}, version)

    async def join_broadcast(self, manifest: WeightManifest) -> float | None:
        """See `inference.weights.target.WeightTarget`; the engine is paused from when it waits for the others."""
        plan, capability, started_at = manifest.broadcast, self._engine.broadcast_capability, time.monotonic()
        assignment = find_assignment(plan, self.id, capability) if capability is not None else None
        if plan is None or assignment is None or plan.rendezvous_key == self._last_rendezvous or self._lora is not None:
            return None
        self._last_rendezvous = plan.rendezvous_key
        try:
            await self._engine.post("/init_weight_transfer_engine", {"init_info": rendezvous_info(plan, assignment)})
        except EngineRejectedError as error:
            log.warning("version %d is fetched as files instead: %s", manifest.version, error)
            return None
        rendezvous_seconds = time.monotonic() - started_at
        load_seconds = await self._load({"content": manifest.fingerprint, "size": plan.size}, manifest.version)
        self._num_swaps += 1
        return rendezvous_seconds + load_seconds

    async def _load(self, update_info: dict[str, Any], version: int) -> float:
        """Load weights; requests in flight are paused, keep their tokens, and continue with the new weights."""
        started_at = time.monotonic()
        # clear_cache: the KV cache of requests in flight is recomputed when they resume (vLLM 0.31).
        clear_cache = "true" if self._settings.kv_cache_on_swap == "recompute" else "false"
        await self._engine.post(f"/pause?mode=keep&clear_cache={clear_cache}")
        try:
            await self._engine.post("/start_weight_update")
            await self._engine.post("/update_weights", {"update_info": update_info})
            await self._engine.post("/finish_weight_update", {"weight_version": str(version)})
        except EngineError:
            # Partially loaded weights must never serve: stop this engine, and start a new one without weights.
            await self._engine.stop()
            raise
        await self._gateway.flush_pending_chunks()
        self._gateway.version = version
        await self._engine.post("/resume")
        return time.monotonic() - started_at

    def on_release_state(self, release: ReleaseState) -> None:
        """See `inference.weights.target.WeightTarget`."""
        if self._lora:
            self._lora.apply_release_state(release)

    async def on_activated(self) -> None:
        """See `inference.weights.target.WeightTarget`."""
        await self._transition("weights_applied")

    async def _transition(self, happening: NodeEvent) -> None:
        self._gateway.state = next_state(self._gateway.state, happening)
        await self._pulse.send_now()

    def _describe(self) -> dict[str, Any]:
        updater: WeightUpdater | None = getattr(self, "_updater", None)
        return {
            "state": self._gateway.state,
            "address": self._settings.advertise_url or self._gateway.address,
            "model": self._settings.model,
            "version": self._gateway.newest,
            "status": {
                "inflight": self._gateway.num_in_flight,
                "swaps": self._num_swaps,
                "engine_id": self._gateway.engine_id,
                "max_model_len": self._engine.max_model_len,
                "problem": updater.last_error[:120] if updater else "",
                **({"versions": list(self._gateway.versions)} if self._lora else {}),
                **(
                    {"broadcast": to_builtins(self._engine.broadcast_capability)}
                    if self._engine.broadcast_capability and not self._lora
                    else {}
                ),
                **({"wants_whole": True} if updater and updater.needs_full_weights else {}),
            },
        }
