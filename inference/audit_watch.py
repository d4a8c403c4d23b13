"""Ends an engine that the auditor has convicted; the node starts another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.inference.engine.base import EngineError
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.quarantine import standing_verdicts

log = logging.getLogger(__name__)

RECHECK_SECONDS = 5.0
"""Seconds between two checks of the verdicts without a notification."""


async def watch_audits(bus: Bus, model: str, engine_id: str, stop_engine: Callable[[], Awaitable[None]]) -> None:
    """Wait for a verdict on an engine, stop it, and raise `EngineError`."""
    verdicts, notified = AuditLog(bus, model), asyncio.Event()

    async def on_notification(_: Msg) -> None:
        notified.set()

    subscription = await bus.nc.subscribe(subjects.audit(model), cb=on_notification)
    try:
        while True:
            notified.clear()
            with suppress(BusError, NatsError):
                for verdict in standing_verdicts((await verdicts.refresh()).verdicts):
                    if verdict.engine_id == engine_id:
                        reason = f"engine {engine_id} fails the audit: {verdict.reason}"
                        log.error("%s; it is stopped, and its tokens are quarantined", reason)
                        await stop_engine()
                        raise EngineError(reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await notified.wait()
    finally:
        if bus.nc.is_connected:
            await subscription.unsubscribe()
