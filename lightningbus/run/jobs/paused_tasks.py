"""Tasks that stay on the bus while a job that goes on evaluates an older version: nodes serve that version then."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import ConsumerSpec
from lightningbus.common.aio import cancel_and_wait

log = logging.getLogger(__name__)

PAUSE_SECONDS, RENEW_SECONDS = 60.0, 20.0
"""Length of a pause, which ends by itself where this process dies, and the time after which it begins anew."""


@asynccontextmanager
async def tasks_paused(bus: Bus, consumers: Sequence[ConsumerSpec]) -> AsyncIterator[None]:
    """Let nobody take messages by these durables while the block runs.

    Raises as `Bus.ensure_consumer`.
    """
    for consumer in consumers:
        await bus.ensure_consumer(consumer)
    await _pause(bus, consumers)
    renewing = asyncio.create_task(_keep_paused(bus, consumers))
    try:
        yield
    finally:
        await cancel_and_wait(renewing)
        await _pause(bus, consumers, seconds=0.0)


async def _keep_paused(bus: Bus, consumers: Sequence[ConsumerSpec]) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        await _pause(bus, consumers)


async def _pause(bus: Bus, consumers: Sequence[ConsumerSpec], seconds: float = PAUSE_SECONDS) -> None:
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for consumer in consumers:
        try:
            await bus.js.pause_consumer(consumer.stream, consumer.durable, until)
        except NatsError as error:  # the bus is away, or a server before 2.11
            log.warning("%s of %s cannot be paused: %s", consumer.durable, consumer.stream, error)
