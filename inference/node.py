"""The inference node: engine, subscriber and gateway, wired together and kept alive."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from bus.client import Bus
from bus.errors import AccessError
from bus.fleet.heartbeats import Pulse, own_id
from bus.fleet.node_state import Happening, step
from bus.security.secrets import is_loopback, read_key
from common.aio import cancel
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

RESTART_SECONDS = (1.0, 30.0)


class PortInUse(Exception):
    """The gateway's port is taken."""


async def run(bus: Bus, settings: InferenceSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop; raises `EngineError` if vLLM cannot start at all, `PortInUse`, `bus.AccessError`."""
    if not (settings.model_path / "config.json").exists():
        raise EngineError(f"model_path: {settings.model_path} holds no model (no config.json)")
    await Node(bus, settings).run(stop)


def _cluster_key(settings: InferenceSettings) -> str:
    if settings.cluster_key_file is not None:
        return read_key(settings.cluster_key_file)
    if not is_loopback(settings.host):
        raise AccessError(
            f"host: {settings.host} is reached from other machines, where anybody might use the model: set "
            "cluster_key_file, to a file of a long random word that runners are given too"
        )
    return ""


class Node:
    """One node; see the module."""

    def __init__(self, bus: Bus, settings: InferenceSettings) -> None:
        self._bus = bus
        self._settings = settings
        self.id = own_id(settings.id)
        self._key = _cluster_key(settings)
        self._swaps = 0
        self._adapters: LoraManager | None = None
        self._meeting = ""
        """The last one gone to: who was there in vain does not go again."""
        self.needs_swap_lock = settings.lora is None
        """See `inference.weights.target.WeightTarget`. Loading adapters pauses no call, so it needs no lock."""
        self.canary: EngineCanary
        """See `inference.weights.target.WeightTarget`."""
        self._engine: VllmServer
        self._gateway: Gateway
        self._subscriber: WeightUpdater
        self._pulse: Pulse

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        async with VllmServer(self._settings) as self._engine:
            host, port, most = self._settings.host, self._settings.port, self._settings.max_requests
            lora = self._settings.lora
            residents = LoadedVersions(self._settings.model, lora.versions) if lora else None
            self._gateway = Gateway(URL, self._engine.session, host, port, self._key, most, residents)
            if lora and residents:
                place = self._settings.work / "adapters"
                self._adapters = LoraManager(residents, lora.rank, place, self._gateway, self._engine.post)
            self.canary = EngineCanary(self._engine, self._settings.model, self._gateway, self._transition)
            try:
                await self._gateway.__aenter__()
            except OSError as error:
                why = f"port: cannot listen on {host}:{port}: {error.strerror}; set another port, or 0"
                raise PortInUse(why) from error
            try:
                async with self._bus.beat("inference", self.id, self._describe) as self._pulse:
                    await self._keep_alive(stop)
            finally:
                await self._gateway.__aexit__()

    async def _keep_alive(self, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        pause, longest = RESTART_SECONDS
        proven = False
        while not stopping.done():
            life = asyncio.create_task(self._run_engine())
            await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                await self._transition("stop")
                await cancel(life)
                break
            proven = proven or self._gateway.state in ("stale", "ready", "judging")
            await self._transition("engine_lost")
            await self._engine.stop()
            error = life.exception()
            worth_another = proven or isinstance(error, EngineKilledError)  # what never ran may be set up wrongly
            if not isinstance(error, EngineError) or not worth_another:
                stopping.cancel()
                raise error or AssertionError("a node lives until its engine is lost")
            log.error("%s; starting it again in %g s", error, pause)
            await asyncio.wait({stopping}, timeout=pause)
            pause = min(pause * 2, longest)

    async def _run_engine(self) -> None:
        """One life of the engine: start, follow the versions; ends by `EngineError`."""
        self._gateway.version = None
        if self._adapters:
            self._adapters.on_engine_restart()
        await self._engine.start()
        await self._transition("engine_up")
        log.info("node %s: engine is up, waiting for weights of %s", self.id, self._settings.model)
        work = self._settings.work / "weights"
        self._subscriber = WeightUpdater(self._bus, self.id, self._settings.model, work, self)
        lost = asyncio.create_task(self._engine.wait_exit())
        working = {asyncio.create_task(self._subscriber.run())}
        if self._adapters:
            working.add(asyncio.create_task(self._adapters.unload_loop()))
        try:
            done, _ = await asyncio.wait({*working, lost}, return_when=asyncio.FIRST_COMPLETED)
            for failed in done & working:
                await failed
            raise EngineError(f"vLLM ended with {await lost}")
        finally:
            await cancel(*working, lost)

    async def load_files(self, files: Sequence[Path], version: int) -> float:
        """See `inference.weights.target.WeightTarget`."""
        paused = await (
            self._adapters.load_version(files, version, self._replace)
            if self._adapters
            else self._replace(files, version)
        )
        self._swaps += 1
        return paused

    async def _replace(self, files: Sequence[Path], version: int) -> float:
        return await self._load({"paths": [str(path.resolve()) for path in files]}, version)

    async def join_broadcast(self, manifest: WeightManifest) -> float | None:
        """See `inference.weights.target.WeightTarget`; the engine stands still from when it waits for the others."""
        offer, reach, started = manifest.broadcast, self._engine.broadcast_capability, time.monotonic()
        seat = find_assignment(offer, self.id, reach) if reach is not None else None
        if offer is None or seat is None or offer.rendezvous_key == self._meeting or self._adapters is not None:
            return None
        self._meeting = offer.rendezvous_key
        try:
            await self._engine.post("/init_weight_transfer_engine", {"init_info": rendezvous_info(offer, seat)})
        except EngineRejectedError as error:
            log.warning("version %d is to be had by its files: %s", manifest.version, error)
            return None
        met = time.monotonic() - started
        paused = met + await self._load({"content": manifest.fingerprint, "size": offer.size}, manifest.version)
        self._swaps += 1
        return paused

    async def _load(self, update_info: dict[str, Any], version: int) -> float:
        """Requests in flight stand still for the moment, keep their tokens, and go on with the new weights."""
        started = time.monotonic()
        # clear_cache: requests in flight are computed again from their tokens when they resume (vLLM 0.31).
        clear = "true" if self._settings.kv_cache == "recompute" else "false"
        await self._engine.post(f"/pause?mode=keep&clear_cache={clear}")
        try:
            await self._engine.post("/start_weight_update")
            await self._engine.post("/update_weights", {"update_info": update_info})
            await self._engine.post("/finish_weight_update", {"weight_version": str(version)})
        except EngineError:
            # Half-loaded weights must never answer: this engine is given up, a new one starts stale.
            await self._engine.stop()
            raise
        await self._gateway.flush_pending_chunks()
        self._gateway.version = version
        await self._engine.post("/resume")
        return time.monotonic() - started

    def on_release_state(self, release: ReleaseState) -> None:
        """See `inference.weights.target.WeightTarget`."""
        if self._adapters:
            self._adapters.apply_release_state(release)

    async def on_activated(self) -> None:
        """See `inference.weights.target.WeightTarget`."""
        await self._transition("weights_applied")

    async def _transition(self, happening: Happening) -> None:
        self._gateway.state = step(self._gateway.state, happening)
        await self._pulse.now()

    def _describe(self) -> dict[str, Any]:
        subscriber: WeightUpdater | None = getattr(self, "_subscriber", None)
        return {
            "state": self._gateway.state,
            "address": self._settings.advertise or self._gateway.address,
            "model": self._settings.model,
            "version": self._gateway.newest,
            "status": {
                "inflight": self._gateway.num_in_flight,
                "swaps": self._swaps,
                "max_model_len": self._engine.max_model_len,
                "problem": subscriber.last_error[:120] if subscriber else "",
                **({"versions": list(self._gateway.versions)} if self._adapters else {}),
                **(
                    {"reach": to_builtins(self._engine.broadcast_capability)}
                    if self._engine.broadcast_capability and not self._adapters
                    else {}
                ),
                **({"wants_whole": True} if subscriber and subscriber.needs_full_weights else {}),
            },
        }
