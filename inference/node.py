"""The inference node: an engine, its gateway and its models, wired together; restarts the engine when it fails."""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.directory_lock import DirectoryInUseError, lock_directory
from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.bus.fleet.node_state import NodeEvent
from lightningbus.bus.security.secrets import read_key
from lightningbus.bus.weights.version_cache import BaseFiles
from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.listeners import is_loopback
from lightningbus.inference.engine.base import Engine, EngineError, EngineKilledError, OpenEngine
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.gateway.server import Gateway
from lightningbus.inference.lora.shared_base import SharedBase
from lightningbus.inference.node_model import NodeModel
from lightningbus.inference.settings import InferenceSettings

log = logging.getLogger(__name__)

RESTART_POLICY = RetryPolicy(1.0, 30.0)
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt")
"""Files from which vLLM reads weights."""


async def run(bus: Bus, settings: InferenceSettings, stop: asyncio.Event, open_engine: OpenEngine = VllmEngine) -> None:
    """Serve until asked to stop.

    Raises `EngineError` if the engine cannot start at all, `AddressInUseError`, `bus.CredentialsError`.
    """
    path = settings.model_path
    if not (path / "config.json").exists():
        raise EngineError(f"model_path: {path} holds no model (no config.json)")
    if settings.frozen and not any(file for pattern in WEIGHT_FILES for file in path.glob(pattern)):
        raise EngineError(
            f"model_path: {path} holds no weights ({', '.join(WEIGHT_FILES)}), and a frozen node has none"
        )
    node = Node(bus, settings, open_engine)
    try:
        with lock_directory(settings.work_dir, is_private=False):
            await node.run(stop)
    except DirectoryInUseError as error:
        raise EngineError(f"work_dir: {error}") from error


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
    """Runs one engine, its gateway and its models."""

    def __init__(self, bus: Bus, settings: InferenceSettings, open_engine: OpenEngine = VllmEngine) -> None:
        self._bus = bus
        self._open_engine = open_engine
        self._settings = settings
        self.id = default_instance_id(settings.id)
        self._inference_api_key = _read_inference_api_key(settings)
        self._base = SharedBase(len(settings.models))
        self._base_files = BaseFiles(settings.work_dir / "weights")
        self._models: list[NodeModel] = []
        self._engine: Engine
        self._gateway: Gateway

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until asked to stop; see the function `run`."""
        settings = self._settings
        async with self._open_engine(settings) as self._engine:
            self._models = [NodeModel(self._bus, self.id, name, settings, self._engine) for name in settings.models]
            if settings.lora:
                for model in self._models:
                    model.use_adapters(self._base)
            served = [model.served for model in self._models]
            key = self._inference_api_key
            self._gateway = Gateway(
                self._engine.forward, settings.host, settings.port, served, key, settings.max_requests
            )
            async with self._gateway, AsyncExitStack() as heartbeats:
                for model in self._models:
                    describe = partial(self._describe, model)
                    model.heartbeat = await heartbeats.enter_async_context(
                        self._bus.heartbeat("inference", model.id, describe)
                    )
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
            started_once = started_once or any(
                model.served.state in ("awaiting_weights", "ready", "canary", "suspect") for model in self._models
            )
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
        for model in self._models:
            model.on_engine_restart()
        self._base.on_engine_restart()
        await self._engine.start()
        engine_id = self._gateway.engine_id = f"{self.id}:{self._engine.capabilities.engine_id}"
        names = ", ".join(self._settings.models)
        if self._settings.frozen:
            for model in self._models:
                await model.serve_frozen()
            log.info(
                "node %s: engine is up, serving the weights of %s as %s", self.id, self._settings.model_path, names
            )
        else:
            await self._transition("engine_up")
            log.info("node %s: engine is up, waiting for weights of %s", self.id, names)
        exited = asyncio.ensure_future(self._engine.wait_exit())
        loops = [
            loop for model in self._models for loop in model.loops(engine_id, self._base_files, self._stop_suspect)
        ]
        await first_completed(exited, *loops)
        raise exited.result()

    async def _stop_suspect(self) -> None:
        """Serve no more calls, and stop the engine: its earlier tokens are quarantined."""
        await self._transition("audit_failed")
        await self._engine.stop()

    async def _transition(self, event: NodeEvent) -> None:
        """Apply an event of the engine to all of its models."""
        for model in self._models:
            await model.transition(event)

    def _describe(self, model: NodeModel) -> dict[str, Any]:
        return model.describe(self._gateway.address, self._gateway.engine_id, self._gateway.num_in_flight)
