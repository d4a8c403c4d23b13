"""A lease on a task: when to renew it, whether it is still ours, and the timer that keeps it so."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bus.message import Message
from common.aio import cancel_and_wait

log = logging.getLogger(__name__)


@dataclass
class Lease:
    """Held until ``ack_wait`` seconds after the last renewal. Pure; times are in seconds of one monotonic clock."""

    ack_wait: float
    renewed: float
    """When the last renewal was sent: the broker noted it later, so it never lets go before we think it does."""

    def seconds_until_renewal(self, now: float) -> float:
        """Seconds until the next renewal, three to an ``ack_wait``; 0: now."""
        return max(0.0, self.renewed + self.ack_wait / 3 - now)

    def renew(self, sent_at: float, confirmed_at: float) -> None:
        """The broker has confirmed a renewal. A late one renews nothing, because another runner may have the task."""
        if self.is_held(confirmed_at):
            self.renewed = sent_at

    def is_held(self, now: float) -> bool:
        """Whether no other runner can have the task. False after a long pause of the process or of the connection."""
        return now - self.renewed < self.ack_wait


@asynccontextmanager
async def keep_renewed(delivery: Message, ack_wait: float = 30.0) -> AsyncIterator[Lease]:
    """Keep a delivery ours while the block runs, by a task of its own, three times per ``ack_wait``."""
    now = asyncio.get_running_loop().time
    lease = Lease(ack_wait, now())

    async def renew() -> None:
        while True:
            await asyncio.sleep(lease.seconds_until_renewal(now()) or ack_wait / 3)
            sent = now()
            try:
                await delivery.in_progress(sync=True)
            except Exception as error:  # whatever it was: without another try the lease runs out
                log.warning("lease of %s not renewed: %s", delivery.subject, str(error) or type(error).__name__)
            else:
                lease.renew(sent, now())

    renewing = asyncio.create_task(renew())
    try:
        yield lease
    finally:
        await cancel_and_wait(renewing)
