"""Follows the versions of a model on the bus: gets their files while the old one serves, then swaps."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from bus import Bus, BusError, metrics, tracing
from inference.files import VersionFiles
from schemas import attributes, subjects
from schemas.events import WeightApplied, WeightVersion

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""How often the last version is looked up even if no event came: events are hints, the stream is the truth."""

HINT_PAUSES = (0.02, 0.1, 0.5)
"""An event may arrive before the stream can be asked for it: looked up again after these pauses, in seconds."""


class Swap(Protocol):
    """Loads verified files as a version: all weights, or a base and its adapters.

    Returns the seconds generation stood still.
    """

    def __call__(self, files: Sequence[Path], version: int) -> Awaitable[float]: ...


class Subscriber:
    """Keeps the engine at the newest version the bus holds."""

    def __init__(self, bus: Bus, node: str, model: str, work: Path, swap: Swap) -> None:
        self._bus, self._node, self._model, self._swap = bus, node, model, swap
        self._files = VersionFiles(bus, model, work)
        self._news = asyncio.Event()
        self.version: int | None = None
        self.problem = ""
        self.wants_whole = False
        """The newest version is a delta that cannot be put together here, not even from the whole one before it."""

    async def run(self, on_applied: Callable[[], Awaitable[None]]) -> None:
        """Follow for ever; ``on_applied`` is called after each swap. An engine's failure is raised."""
        self._files.clear()
        hint = await self._bus.nc.subscribe(subjects.weights(self._model), cb=self._on_news)
        try:
            pauses = iter(HINT_PAUSES)
            while True:
                if self._news.is_set():
                    self._news.clear()
                    pauses = iter(HINT_PAUSES)
                if await self._catch_up():
                    await on_applied()
                    continue
                try:
                    async with asyncio.timeout(next(pauses, RECHECK_SECONDS)):
                        await self._news.wait()
                except TimeoutError:
                    continue
        finally:
            if self._bus.nc.is_connected:
                await hint.unsubscribe()

    async def _on_news(self, message: Msg) -> None:
        self._news.set()

    async def _catch_up(self) -> bool:
        """Apply the newest version if it is not held yet; a bad or missing blob leaves the old one serving."""
        offered = ""
        with ExitStack() as whole:
            try:
                found = await self._bus.last(subjects.WEIGHTS, subjects.weights(self._model), WeightVersion)
                if found is None or (self.version is not None and found[0].version <= self.version):
                    return False
                manifest = found[0]
                offered = manifest.kind
                said: tracing.Said = {attributes.WEIGHT_VERSION: manifest.version, attributes.NODE: self._node}
                whole.enter_context(tracing.span("version", said))
                started = time.monotonic()
                with tracing.span("fetch and verify"):
                    files = await self._files.get(manifest)
                fetched = time.monotonic() - started
            except (BusError, NatsError, OSError, ValueError) as error:
                metrics.fetch_failures.inc()
                self.problem, self.wants_whole = f"weights not fetched: {error}", self.wants_whole or offered == "delta"
                log.warning("%s; version %s goes on serving", self.problem, self.version)
                return False
            with tracing.span("swap"):
                paused = await self._swap(files, manifest.version)
        self.version, self.problem, self.wants_whole = manifest.version, "", False
        metrics.node_version.set(manifest.version)
        metrics.fetch_seconds.observe(fetched)
        metrics.swap_pause_seconds.observe(paused)
        log.info("version %d: fetched in %.3f s, paused for %.3f s", manifest.version, fetched, paused)
        await self._announce(manifest, fetched, paused)
        self._files.drop_all_but(files)
        return True

    async def _announce(self, manifest: WeightVersion, fetched: float, paused: float) -> None:
        applied = WeightApplied(
            node=self._node,
            model=self._model,
            version=manifest.version,
            fetch_seconds=fetched,
            pause_seconds=paused,
            applied_ns=time.time_ns(),
        )
        msg_id = f"applied:{self._node}:{manifest.version}:{applied.applied_ns}"
        try:
            await self._bus.publish(subjects.applied(self._node), applied, msg_id=msg_id)
        except BusError as error:
            log.warning("version %d is served but was not announced: %s", manifest.version, error)
