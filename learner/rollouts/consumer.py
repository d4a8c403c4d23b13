"""Rollouts off the bus and into groups; nothing is acknowledged before a checkpoint covers it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec.structs import replace
from nats.errors import Error as NatsError

from bus.client import Bus
from bus.errors import BusError
from bus.message import Delivery
from bus.pull_consumer import Puller
from bus.streams import LEARNER_ROLLOUTS
from common.aio import cancel
from common.observability import metrics
from common.observability.faults import count_fault
from learner.errors import CannotLearn
from learner.rollouts.assembler import Assembler, Rollout, reward_of, rollout_of
from learner.rollouts.groups import Groups
from learner.rollouts.stream_fill import Room
from learner.rollouts.stream_position import Gap, StreamMark, continue_at, gap_of
from learner.settings.learner import LearnerSettings
from schemas import subjects
from schemas.codec import DecodeError
from schemas.spans import SpanBatch

log = logging.getLogger(__name__)

RESET_PAUSE_SECONDS = 1.0
LOOK_SECONDS = 1.0
"""How often the broker is asked what it has delivered to anybody."""
CALM_SECONDS = 10.0
"""Misses that are further apart have nothing to do with each other."""
PATIENCE_SECONDS = 60.0
"""Who still takes deliveries after so long lives: what somebody who is gone has asked for ends after 30 s."""
MOST_SAMPLES = 65_536
"""Of a group; what says that it is of a larger one is left out."""
PREFETCH = 512
"""Span batches on their way to this process at once."""


class Intake:
    """Reads the spans of one run; all but bus and settings come from the checkpoint it goes on from.

    Positions are those of `StreamMark`.
    """

    def __init__(
        self,
        bus: Bus,
        settings: LearnerSettings,
        position: int = 1,
        used: Mapping[str, int] | None = None,
        closed: Iterable[str] = (),
        mark: StreamMark | None = None,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._rules = settings.credit.rules_in_force
        self._assembler = Assembler(self._rules)
        self._handed_out = dict(used or {})  # execution -> position of its last batch
        self._held: deque[Delivery] = deque()
        self.committed = position
        """Position that a checkpoint covers everything before."""
        self.gap: Gap | None = None
        """What the bus lost, while that which it has kept is not read."""
        self.mark_before = StreamMark()
        """The stream as it was known before that."""
        self._expected = 1
        """The delivery to come next, as the broker counts them for a consumer."""
        self.groups = Groups(settings.group_seconds, self._is_valid, closed)
        self.news = asyncio.Event()
        """Set whenever an attempt has ended, or the bus begins to fill."""
        self.was_reset = asyncio.Event()
        """Set when reading begins anew: the bus may have lost something. Whoever waits for it clears it."""
        self.room = Room(bus)
        self.mark = mark or StreamMark()
        """The stream as it is known now."""
        self.next_sequence = position
        """Position of what has not been delivered yet."""
        self.gaps: asyncio.Queue[Gap] = asyncio.Queue()
        """What the bus lost, each put here when what it has kept is read."""

    async def run(self) -> None:
        """Every batch of the run into its rollout, every rollout into its group, for ever.

        Raises `CannotLearn` if another reader of the durable does not go.
        """
        calm, patience = time.monotonic(), PATIENCE_SECONDS
        # One puller for all: what the broker is still asked for from before then comes here too, and to nobody else.
        async with self._bus.pull(LEARNER_ROLLOUTS, slots=PREFETCH) as puller:
            while True:
                self._bus.reconnected.clear()
                self._held.clear()  # their acknowledgements are of the consumer before the reset
                self._expected = 1
                try:
                    await self._bus.reset(LEARNER_ROLLOUTS, await self.find_position())
                except (NatsError, BusError) as error:
                    log.warning("cannot read rollouts, trying again: %s", str(error) or type(error).__name__)
                    calm = time.monotonic()
                    await asyncio.sleep(RESET_PAUSE_SECONDS)
                    continue
                self.was_reset.set()
                began = time.monotonic()
                missed, now = await self._misses(puller), time.monotonic()
                if not missed:
                    calm = now
                    continue
                if now - began > CALM_SECONDS:
                    calm, patience = now, 2 * PATIENCE_SECONDS  # who was here before is not the one to go
                elif now - calm > patience:
                    raise CannotLearn("another reader takes this run's spans: there can be one learner to a bus")
                log.warning("span batches went to another reader or were lost on their way: reading them again")
                await asyncio.sleep(RESET_PAUSE_SECONDS)

    async def find_position(self) -> int:
        """The stream sequence to read from: the stream may have lost messages since it was last looked at."""
        stream, tasks = await self._bus.stream(LEARNER_ROLLOUTS.stream), await self._bus.stream(subjects.TASKS)
        found = continue_at(self.mark, self.committed, stream)
        gap = gap_of(found, self.mark, tasks, stream.last)
        if gap is not None and self.gap is None:
            self.mark_before = self.mark
        self.mark = replace(found.mark, tasks=tasks.created)
        self.committed = self.mark.offset + found.sequence
        self.next_sequence = max(self.next_sequence, self.committed)
        if gap is not None:
            self.gap = gap
            self._note_gap(found.sequence if stream.messages else stream.last + 1)
        return found.sequence

    def _note_gap(self, sequence: int) -> None:
        """Hand the gap on once everything before a stream sequence is read that the stream has kept."""
        if self.gap is not None and sequence > self.gap.last:
            self.gaps.put_nowait(self.gap)
            self.gap = None

    async def _misses(self, puller: Puller) -> bool:
        """Read until a delivery is missing, or the connection was made anew: False."""
        lost = asyncio.create_task(self._bus.reconnected.wait())
        tasks = lost, asyncio.create_task(self._read(puller)), asyncio.create_task(self._look())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel(*tasks)
        return lost not in done

    async def _read(self, puller: Puller) -> None:
        """Read until a later delivery comes than the next one."""
        async for delivery in puller:
            delivery.release()
            if delivery.consumer_sequence == self._expected:
                self._expected += 1
                self._count(delivery)
            elif self._expected > 1:  # else it may have been on its way before the reset
                return

    async def _look(self) -> None:
        """Look until the broker has delivered to anybody what has not come here, though nothing comes later."""
        given = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            come = self._expected - 1
            try:
                stream, backlog = await self.room.look()
            except (NatsError, BusError):
                continue
            # What was on its way at the look before came ahead of this answer; a count that falls was reset by another.
            now = backlog.delivered
            if self._expected <= given or now < come or stream.created != self.mark.created:
                return
            given = now
            if self.room.is_filling:
                self.news.set()

    def _count(self, delivery: Delivery) -> None:
        position = self.mark.offset + delivery.sequence
        if position >= self.next_sequence:
            self._take(delivery, position)
            self.next_sequence = position + 1
            self.mark = replace(self.mark, last=delivery.sequence)
        self._note_gap(delivery.sequence + 1)
        if not self._held or delivery.sequence > self._held[-1].sequence:  # else it comes again, after `ack_wait`
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
        self.committed = max(position, self.committed)
        last: Delivery | None = None
        while self._held and self.mark.offset + self._held[0].sequence < position:
            last = self._held.popleft()
        if last is not None:
            await last.ack()  # and with it all before

    def _take(self, delivery: Delivery, position: int) -> None:
        try:
            self._add(delivery.as_(SpanBatch), position)
        except DecodeError as error:
            log.warning("span batch %d is left out: %s", delivery.sequence, error)  # the store keeps it as dead letter
        except Exception as error:  # whatever a message leads to, it is read no better the next time
            count_fault(f"span batch {delivery.sequence} is left out", error)
        else:
            return
        metrics.batches_left_out.inc()

    def _add(self, batch: SpanBatch, position: int) -> None:
        if not batch.sample_index < batch.group_size <= MOST_SAMPLES:
            raise DecodeError(f"sample {batch.sample_index} of {batch.group_size} is none of a group")
        if batch.run_id != self._settings.run or batch.execution_id in self._handed_out:
            return
        if batch.task_id in self.groups.closed:  # too late to be used, so only its end is of interest
            rollout = rollout_of([batch], position, position, self._rules) if batch.end else None
        else:
            rollout = self._assembler.add(batch, position)
        if rollout is not None:
            self.groups.add(rollout, time.monotonic())
            if rollout.task in self.groups.closed:
                self._assembler.forget([rollout.task])
            self.news.set()

    def _is_valid(self, rollout: Rollout) -> bool:
        return reward_of(rollout, self._settings.failed_rollouts) is not None
