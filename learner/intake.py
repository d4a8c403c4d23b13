"""Rollouts off the bus and into groups; nothing is acknowledged before a checkpoint covers it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

from bus import LEARNER_SPANS, Bus, Delivery
from learner.groups import Groups
from learner.rollouts import Assembler, Rollout, reward_of
from learner.settings import LearnerSettings
from schemas.codec import DecodeError
from schemas.events import SpanBatch

log = logging.getLogger(__name__)

PREFETCH = 512
"""Span batches on their way to this process at once."""


class Intake:
    """Reads the spans of one run; ``used`` and ``closed`` come from the checkpoint it goes on from."""

    def __init__(self, bus: Bus, settings: LearnerSettings, used: Iterable[str], closed: Iterable[str]) -> None:
        self._bus = bus
        self._settings = settings
        self._assembler = Assembler(set(used))
        self._held: deque[Delivery] = deque()
        self.groups = Groups(settings.group_seconds, self._is_valid, closed)
        self.news = asyncio.Event()
        """Set whenever a rollout has ended."""
        self.next_sequence = 1
        """Stream position of what has not been delivered yet."""

    async def run(self) -> None:
        """Every batch of the run into its rollout, every rollout into its group, for ever."""
        async with self._bus.pull(LEARNER_SPANS, slots=PREFETCH) as puller:
            async for delivery in puller:
                self._take(delivery)
                delivery.data = b""  # held only to be acknowledged
                self._held.append(delivery)
                self.next_sequence = delivery.sequence + 1
                delivery.release()

    def position(self) -> int:
        """Where a replay must begin to see again everything that is not used yet."""
        waiting = [rollout.first_sequence for rollout in self.groups.held()]
        return min([self.next_sequence, *filter(None, [self._assembler.oldest()]), *waiting])

    def used(self) -> list[str]:
        """Rollouts that have had their last word and left the groups."""
        return sorted(self._assembler.ended - {rollout.id for rollout in self.groups.held()})

    async def acknowledge(self, position: int) -> None:
        """A checkpoint covers everything before ``position``."""
        last: Delivery | None = None
        while self._held and self._held[0].sequence < position:
            last = self._held.popleft()
        if last is not None:
            await last.ack()  # and with it all before

    def _take(self, delivery: Delivery) -> None:
        try:
            batch = delivery.as_(SpanBatch)
        except DecodeError as error:
            log.warning("span batch %d is left out: %s", delivery.sequence, error)  # the store keeps it as dead letter
            return
        if batch.run != self._settings.run:
            return
        rollout = self._assembler.add(batch, delivery.sequence)
        if rollout is not None:
            self.groups.add(rollout, time.monotonic())
            self.news.set()

    def _is_valid(self, rollout: Rollout) -> bool:
        return reward_of(rollout, self._settings.failed_rollouts) is not None
