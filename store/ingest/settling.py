"""Acknowledge, extend or dead-letter messages. The bus may be away: nothing here raises."""

import contextlib
import logging
from collections.abc import Iterable

from bus.client import Bus
from bus.dead_letters import DeadLetterQueue
from bus.message import Message

log = logging.getLogger(__name__)

DEAD_LETTER_RETRY_SECONDS = 30.0


async def acknowledge(deliveries: Iterable[Message]) -> None:
    """Acknowledge; a message that cannot be acknowledged is redelivered."""
    for delivery in deliveries:
        try:
            await delivery.ack()
        except Exception as error:
            log.warning("inserted but not acknowledged, so it will be redelivered: %s", error)


async def extend(deliveries: Iterable[Message]) -> None:
    """Extend the ack wait of messages that are still in progress."""
    for delivery in deliveries:
        with contextlib.suppress(Exception):
            await delivery.in_progress()


async def dead_letter(bus: Bus, delivery: Message, reason: str) -> None:
    """Make a message a dead letter; if that fails now, it is redelivered later."""
    try:
        await DeadLetterQueue(bus).add(delivery, reason)
    except Exception as error:
        log.warning(
            "%s/%d is not dead-lettered, so it will be redelivered: %s", delivery.stream, delivery.sequence, error
        )
        with contextlib.suppress(Exception):
            await delivery.nak(DEAD_LETTER_RETRY_SECONDS)
