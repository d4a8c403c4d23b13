"""Warning that a frozen node ignores weight versions published for its model."""

import asyncio
import logging
from contextlib import suppress

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.schemas import subjects

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""Seconds between two checks of the versions without a notification."""


class IgnoredVersions:
    """Versions of a frozen model on the bus."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus, self._model = bus, model
        self.problem = ""
        """That there are some, as a sentence; empty: there are none."""

    async def watch(self) -> None:
        """Look for versions until cancelled."""
        versions, notified = WeightRegistry(self._bus, self._model), asyncio.Event()

        async def on_notification(_: Msg) -> None:
            notified.set()

        subscription = await self._bus.nc.subscribe(subjects.weights(self._model), cb=on_notification)
        try:
            while True:
                notified.clear()
                with suppress(BusError, NatsError):
                    newest = await anext(versions.list_versions(), None)
                    self._note(None if newest is None else newest[0].version)
                with suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK_SECONDS):
                        await notified.wait()
        finally:
            if self._bus.nc.is_connected:
                await subscription.unsubscribe()

    def _note(self, newest: int | None) -> None:
        before = self.problem
        self.problem = (
            f"version {newest} of {self._model!r} on the bus is ignored: this node is frozen"
            if newest is not None
            else ""
        )
        if self.problem and not before:  # once, not for each version
            log.warning("%s, and serves the weights of model_path as version 0", self.problem)
