"""Acknowledge, keep, give back or dead-letter messages. The bus may be away: nothing here raises."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.streams.specs import ACK_WAIT_SECONDS
from lightningbus.common.aio import cancel_and_wait

log = logging.getLogger(__name__)

DEAD_LETTER_RETRY_SECONDS = 30.0
GIVE_BACK_SECONDS = 5.0


async def acknowledge(messages: Iterable[Message]) -> None:
    """Acknowledge; a message that cannot be acknowledged is redelivered."""
    for message in messages:
        try:
            await message.ack()
        except Exception as error:
            log.warning("inserted but not acknowledged, so it will be redelivered: %s", error)


@asynccontextmanager
async def keep_extended(messages: Collection[Message]) -> AsyncIterator[None]:
    """Extend the ack wait of messages that are not settled, again and again while the block runs."""

    async def extend() -> None:
        while True:
            await asyncio.sleep(ACK_WAIT_SECONDS / 3)
            for message in messages:
                with contextlib.suppress(Exception):
                    await message.in_progress()

    extending = asyncio.create_task(extend())
    try:
        yield
    finally:
        await cancel_and_wait(extending)


async def give_back(message: Message) -> None:
    """Return a message to the bus, to be delivered again a little later."""
    with contextlib.suppress(Exception):
        await message.nak(GIVE_BACK_SECONDS)


async def dead_letter(bus: Bus, message: Message, reason: str) -> None:
    """Make a message a dead letter; if that fails now, it is redelivered later."""
    try:
        await DeadLetterQueue(bus).add(message, reason)
    except Exception as error:
        log.warning(
            "%s/%d is not dead-lettered, so it will be redelivered: %s", message.stream, message.sequence, error
        )
        with contextlib.suppress(Exception):
            await message.nak(DEAD_LETTER_RETRY_SECONDS)
