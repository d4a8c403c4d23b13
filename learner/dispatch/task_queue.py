"""Number of training tasks that wait for a runner."""

import time

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.streams.specs import runner_consumer

LEAD_SECONDS = 0.5
"""Tasks that runners take in so long are queued beside a group, so that no runner waits for the learner."""
WINDOW_SECONDS = 0.2
"""Shortest time over which the pace of runners is measured."""


class TaskQueue:
    """The queue of training tasks of one agent, as the broker counts it."""

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus, self._consumer = bus, runner_consumer(agent, "train")
        self._num_delivered, self._counted_at = 0, time.monotonic()
        self._tasks_per_second = 0.0

    async def has_room(self, size: int) -> bool | None:
        """Return whether ``size`` more tasks would be taken soon; None without runners, whose durable is then missing.

        False while the bus does not answer.
        """
        try:
            backlog = await self._bus.backlog(self._consumer)
        except NotFoundError:
            return None
        except (NatsError, BusError):
            return False
        self._measure(backlog.num_delivered, time.monotonic())
        return backlog.num_pending < size + self._tasks_per_second * LEAD_SECONDS

    def _measure(self, num_delivered: int, now: float) -> None:
        if now - self._counted_at >= WINDOW_SECONDS:
            taken = max(0, num_delivered - self._num_delivered)
            self._tasks_per_second = taken / (now - self._counted_at)
            self._num_delivered, self._counted_at = num_delivered, now
