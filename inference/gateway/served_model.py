"""A model as the gateway serves it: its state, its versions, and the calls that the engine answers for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from lightningbus.bus.fleet.node_state import State, is_ready
from lightningbus.inference.gateway.version_stamp import StampEvent, stamp_event
from lightningbus.inference.version_registry import LoadedVersions, select_version


class ServedModel:
    """One model of a node. An engine that holds adapters may have several of them, each with its own state."""

    def __init__(self, name: str, versions: LoadedVersions | None = None) -> None:
        """Prepare a model under its public ``name``; ``versions`` are LoRA versions that the engine has loaded."""
        self.name = name
        self._loaded = versions or LoadedVersions(name, 1)
        self.version: int | None = None
        """Version of the engine's own weights; None: there are none, or a base for adapters, which is no version."""
        self.state: State = "starting"
        self._in_flight: dict[int, web.Request] = {}
        """Requests that the engine is handling."""
        self._is_draining, self._call_ended = False, asyncio.Event()

    @property
    def num_in_flight(self) -> int:
        """Number of requests that the engine is handling."""
        return len(self._in_flight)

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that serve new calls, newest last."""
        return self._loaded.routable or (() if self.version is None else (self.version,))

    @property
    def newest(self) -> int | None:
        """The version of a call that names none; None: it is rejected."""
        return select_version(self.versions, None, None)

    @property
    def is_answering(self) -> bool:
        """Whether new calls are answered."""
        return is_ready(self.state) and not self._is_draining and bool(self.versions)

    def engine_model_name(self, version: int) -> str:
        """Return the model name of a version inside vLLM; empty: the public one."""
        return self._loaded.name(version) if version in self._loaded else ""

    @contextmanager
    def track(self, request: web.Request, version: int, engine_id: str) -> Iterator[tuple[str, StampEvent]]:
        """Count a call while the block runs; yields its model's name inside vLLM (empty: unchanged) and its stamp."""
        engine_model = self.engine_model_name(version)
        self._in_flight[id(request)] = request
        try:
            if engine_model:
                with self._loaded.track_call(version):
                    yield (
                        engine_model,
                        lambda event: stamp_event(event, version, engine_id, engine_model, self.name),
                    )
            else:
                yield "", lambda event: stamp_event(event, self.version or 0, engine_id)
        finally:
            del self._in_flight[id(request)]
            self._call_ended.set()
            self._call_ended.clear()

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        """Keep calls out while the block runs: those in flight have ended, and new ones get 503 with Retry-After."""
        self._is_draining = True
        try:
            await self._wait_idle()
            yield
        finally:
            self._is_draining = False

    async def abort_in_flight(self) -> None:
        """Abort every response in flight; runners continue at another node, from the tokens they have."""
        for request in self._in_flight.values():
            if request.transport is not None:
                request.transport.abort()
        await self._wait_idle()

    async def _wait_idle(self) -> None:
        while self._in_flight:
            await self._call_ended.wait()
