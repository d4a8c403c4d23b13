"""A lease on a task: when to renew it, whether it is still ours, and what keeps it so."""

import asyncio
import logging
from dataclasses import dataclass

from lightningbus.bus.jetstream.message import Message
from lightningbus.common.aio import cancel_and_wait

log = logging.getLogger(__name__)


@dataclass
class Lease:
    """Held until ``ack_wait`` seconds after the last renewal. Pure; times are in seconds of one monotonic clock."""

    ack_wait: float
    renewed: float
    """Time at which the last renewal was sent: the broker noted it later, so our lease ends before the broker's."""

    def seconds_until_renewal(self, now: float) -> float:
        """Return the seconds until the next renewal, three to an ``ack_wait``; 0: now."""
        return max(0.0, self.renewed + self.ack_wait / 3 - now)

    def renew(self, sent_at: float, confirmed_at: float) -> None:
        """Record a confirmed renewal. A late one renews nothing, because another runner may have the task."""
        if self.is_held(confirmed_at):
            self.renewed = sent_at

    def is_held(self, now: float) -> bool:
        """Return whether no other runner can have the task; false after a long pause of process or connection."""
        return now - self.renewed < self.ack_wait


class LeaseRenewer:
    """Keeps a message ours while the block runs, by renewals three times per ``ack_wait``; gives its `Lease`.

    There is a timer, not a task, until the first renewal is due: most rollouts end sooner.
    """

    __slots__ = ("_lease", "_message", "_renewing", "_timer")

    def __init__(self, message: Message, ack_wait: float = 30.0) -> None:
        self._message = message
        self._lease = Lease(ack_wait, asyncio.get_running_loop().time())
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Lease:
        self._start_timer()
        return self._lease

    async def __aexit__(self, *exception: object) -> None:
        if self._renewing is not None:
            await cancel_and_wait(self._renewing)
        self._timer.cancel()  # last: a renewal whose cancellation was forgotten starts it again

    def _start_timer(self) -> None:
        loop, lease = asyncio.get_running_loop(), self._lease
        seconds = lease.seconds_until_renewal(loop.time()) or lease.ack_wait / 3
        self._timer = loop.call_later(seconds, self._start_renewal)

    def _start_renewal(self) -> None:
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        now = asyncio.get_running_loop().time
        sent = now()
        try:
            await self._message.in_progress(sync=True)
        except Exception as error:  # any error: without another try the lease runs out
            log.warning("lease of %s not renewed: %s", self._message.subject, str(error) or type(error).__name__)
        else:
            self._lease.renew(sent, now())
        self._start_timer()
