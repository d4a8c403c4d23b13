"""What becomes of a message once its rows are written, or cannot be. The bus may be away: nothing here raises."""

import contextlib
import logging
from collections.abc import Iterable

from bus.client import Bus
from bus.message import Delivery

log = logging.getLogger(__name__)

DEAD_LETTER_RETRY_SECONDS = 30.0


async def acknowledge(deliveries: Iterable[Delivery]) -> None:
    """The broker may forget them; one that is not acknowledged comes again."""
    for delivery in deliveries:
        try:
            await delivery.ack()
        except Exception as error:
            log.warning("inserted but not acknowledged, so it will come again: %s", error)


async def extend(deliveries: Iterable[Delivery]) -> None:
    """They are still being worked on; cut off from the bus they come again."""
    for delivery in deliveries:
        with contextlib.suppress(Exception):
            await delivery.in_progress()


async def bury(bus: Bus, delivery: Delivery, reason: str) -> None:
    """Keep it as a dead letter; a message that cannot be kept now comes again later."""
    try:
        await bus.bury(delivery, reason)
    except Exception as error:
        log.warning("%s/%d is no dead letter yet, so it will come again: %s", delivery.stream, delivery.sequence, error)
        with contextlib.suppress(Exception):
            await delivery.nak(DEAD_LETTER_RETRY_SECONDS)
