"""Rollouts off the bus and into groups; nothing is acknowledged before a checkpoint covers it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nats.errors import Error as NatsError

from bus import LEARNER_SPANS, Bus, Delivery
from bus.cancelling import cancel
from bus.puller import Puller
from learner.groups import Groups
from learner.rollouts import Assembler, Rollout, reward_of, rollout_of
from learner.settings import LearnerSettings
from schemas.codec import DecodeError
from schemas.events import SpanBatch

log = logging.getLogger(__name__)

RESET_PAUSE_SECONDS = 1.0
SETTLE_SECONDS = 1.0
"""How long after a reset deliveries may come that were on their way before it; then the first is missed."""
PREFETCH = 512
"""Span batches on their way to this process at once."""


class Intake:
    """Reads the spans of one run; ``position``, ``used`` and ``closed`` come from the checkpoint it goes on from."""

    def __init__(
        self, bus: Bus, settings: LearnerSettings, position: int, used: Mapping[str, int], closed: Iterable[str]
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._rules = settings.credit.rules_in_force
        self._assembler = Assembler(self._rules)
        self._handed_out = dict(used)  # execution -> stream sequence of its last batch
        self._held: deque[Delivery] = deque()
        self._committed = position
        self.groups = Groups(settings.group_seconds, self._is_valid, closed)
        self.news = asyncio.Event()
        """Set whenever an attempt has ended."""
        self.next_sequence = position
        """Stream position of what has not been delivered yet."""

    async def run(self) -> None:
        """Every batch of the run into its rollout, every rollout into its group, for ever."""
        # One puller for all: what the broker is still asked for from before then comes here too, and to nobody else.
        async with self._bus.pull(LEARNER_SPANS, slots=PREFETCH) as puller:
            while True:
                self._bus.reconnected.clear()
                self._held.clear()  # their acknowledgements are of the consumer before the reset
                try:
                    await self._bus.reset(LEARNER_SPANS, self._committed)
                except NatsError as error:
                    log.warning("cannot read rollouts, trying again: %s", str(error) or type(error).__name__)
                    await asyncio.sleep(RESET_PAUSE_SECONDS)
                    continue
                lost = asyncio.create_task(self._bus.reconnected.wait())
                reading = asyncio.create_task(self._read(puller))
                try:
                    await asyncio.wait({lost, reading}, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        reading.result()
                        log.warning("span batches went to another reader or were lost on their way: reading them again")
                finally:
                    await cancel(lost, reading)

    async def _read(self, puller: Puller) -> None:
        """Read until a delivery is missing: a broker counts for a consumer what it has delivered to anybody."""
        expected, settled = 1, asyncio.get_running_loop().time() + SETTLE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as first:
                async for delivery in puller:
                    delivery.release()
                    if delivery.consumer_sequence == expected:
                        expected += 1
                        first.reschedule(None)
                        self._count(delivery)
                    elif expected == 1:  # on its way before the reset, or somebody else was given the first
                        first.reschedule(settled)
                    else:
                        return

    def _count(self, delivery: Delivery) -> None:
        if delivery.sequence >= self.next_sequence:
            self._take(delivery)
            self.next_sequence = delivery.sequence + 1
        delivery.data = b""  # held only to be acknowledged
        self._held.append(delivery)

    def position(self) -> int:
        """Where a replay must begin to see again everything that is not used yet."""
        waiting = [rollout.first_sequence for rollout in self.groups.held()]
        return min([self.next_sequence, *filter(None, [self._assembler.oldest()]), *waiting])

    def hand_out(self, rollouts: Iterable[Rollout]) -> None:
        """These are trained on, or known not to be: a replay must pass them over."""
        self._handed_out |= {rollout.execution: rollout.last_sequence for rollout in rollouts}

    def used(self, position: int) -> dict[str, int]:
        """What has been handed out and would come again in a replay from a position; the rest is forgotten."""
        self._handed_out = {what: last for what, last in self._handed_out.items() if last >= position}
        return dict(self._handed_out)

    def expire(self) -> float | None:
        """Close the groups whose time is up; seconds until the next one's is, None if no group is open."""
        left = self.groups.expire(time.monotonic())
        self._assembler.forget(self.groups.closed)
        return left

    async def acknowledge(self, position: int) -> None:
        """A checkpoint covers everything before ``position``."""
        self._committed = position
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
        if batch.run != self._settings.run or batch.execution in self._handed_out:
            return
        if batch.task in self.groups.closed:  # too late to be used, so only its end is of interest
            rollout = rollout_of([batch], delivery.sequence, delivery.sequence, self._rules) if batch.end else None
        else:
            rollout = self._assembler.add(batch, delivery.sequence)
        if rollout is not None:
            self.groups.add(rollout, time.monotonic())
            if rollout.task in self.groups.closed:
                self._assembler.forget([rollout.task])
            self.news.set()

    def _is_valid(self, rollout: Rollout) -> bool:
        return reward_of(rollout, self._settings.failed_rollouts) is not None
