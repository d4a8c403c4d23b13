"""Rollouts off the bus and into groups; nothing is acknowledged before a checkpoint covers it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.jetstream.pull_consumer import PullConsumer
from lightningbus.bus.streams.specs import learner_consumer
from lightningbus.common.aio import first_completed
from lightningbus.common.observability import metrics
from lightningbus.common.observability.faults import count_fault
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.assembler import Assembler, Rollout, build_rollout, build_unreadable, training_reward
from lightningbus.learner.rollouts.groups import GroupBuffer
from lightningbus.learner.rollouts.stream_fill import StreamFill
from lightningbus.learner.rollouts.stream_position import StreamGap, StreamMark, advance_mark, find_gap, resume_at
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)

RESET_PAUSE_SECONDS = 1.0
POLL_SECONDS = 1.0
"""Seconds between two checks of the number of deliveries to all readers."""
GAP_WINDOW_SECONDS = 10.0
"""Misses that are further apart have nothing to do with each other."""
CONFLICT_TIMEOUT_SECONDS = 60.0
"""Seconds after which another active reader is alive; a dead reader's pull requests expire after 30 s."""
MAX_GROUP_SIZE = 65_536
"""Largest group_size accepted; rollouts that claim a larger one are skipped."""
PREFETCH = 512
"""Span batches on their way to this process at once."""


class RolloutConsumer:
    """Reads the spans of one run; all but bus and settings come from the checkpoint.

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
        self._durable = learner_consumer(settings.model)
        self._sets = TaskSets(settings)
        self._assembler = Assembler(self._sets.find_rules)
        self._consumed = dict(used or {})  # execution -> position of its last batch
        self._unacked: deque[Message] = deque()
        self.acked_up_to = position
        """Position that a checkpoint covers everything before."""
        self.gap: StreamGap | None = None
        """Loss of the bus, until the remaining messages are read."""
        self.previous_stream_mark = StreamMark()
        """The stream as it was known before that."""
        self._next_delivery = 1
        """Number of the next delivery, as the broker counts them for a consumer."""
        self.groups = GroupBuffer(settings.max_group_seconds, self._is_valid, closed, settings.algorithm.min_group_size)
        self.attempt_ended = asyncio.Event()
        """Set whenever an attempt has ended, the bus begins to fill, messages are acknowledged, or all is read that was
        there at the start.
        """
        self.on_rollout: Callable[[Rollout], None] = lambda rollout: None
        """Called with each rollout that may be trained, as soon as it is whole."""
        self.was_reset = asyncio.Event()
        """Set when reading restarts: the bus may have lost messages. The task that waits for it clears it."""
        self.fill = StreamFill(bus, settings.model)
        self.stream_mark = mark or StreamMark()
        """The stream as it is known now."""
        self.next_sequence = position
        """Position of what has not been delivered yet."""
        self._end_at_start: int | None = None
        self.gaps: asyncio.Queue[StreamGap] = asyncio.Queue()
        """Losses of the bus, each added once the remaining messages are read."""

    async def run(self) -> None:
        """Put every batch of the run into its rollout, and every rollout into its group, for ever.

        Raises `LearnerError` if another reader of the durable stays.
        """
        last_gap_free_at, conflict_timeout = time.monotonic(), CONFLICT_TIMEOUT_SECONDS
        # One puller for all: what the broker is still asked for from before then comes here too, and to nobody else.
        async with self._bus.pull(self._durable, slots=PREFETCH) as puller:
            while True:
                self._bus.reconnected.clear()
                self._unacked.clear()  # their acknowledgements are of the consumer before the reset
                self._next_delivery = 1
                try:
                    await self._bus.reset_consumer(self._durable, await self.find_position())
                except (NatsError, BusError) as error:
                    log.warning("cannot read rollouts, trying again: %s", str(error) or type(error).__name__)
                    last_gap_free_at = time.monotonic()
                    await asyncio.sleep(RESET_PAUSE_SECONDS)
                    continue
                self.was_reset.set()
                self.attempt_ended.set()
                began = time.monotonic()
                missed, now = await self._consume_until_gap(puller), time.monotonic()
                if not missed:
                    last_gap_free_at = now
                    continue
                if now - began > GAP_WINDOW_SECONDS:
                    # the earlier reader stays
                    last_gap_free_at, conflict_timeout = now, 2 * CONFLICT_TIMEOUT_SECONDS
                elif now - last_gap_free_at > conflict_timeout:
                    raise LearnerError(
                        f"another reader takes the rollouts of model {self._settings.model!r}: "
                        "a model has one learner on a bus"
                    )
                log.warning("span batches went to another reader or were lost on their way: reading them again")
                await asyncio.sleep(RESET_PAUSE_SECONDS)

    async def find_position(self) -> int:
        """Find the stream sequence to read from: the stream may have lost messages since the last check."""
        known = self.stream_mark  # a task that is published meanwhile may not be in the answer
        stream, tasks = (
            await self._bus.stream_state(self._durable.stream),
            await self._bus.stream_state(subjects.TASKS),
        )
        continuation = resume_at(known, self.acked_up_to, stream)
        gap = find_gap(continuation, known, tasks, stream.last_seq)
        if gap is not None and self.gap is None:
            self.previous_stream_mark = known
        self.stream_mark = advance_mark(continuation.mark, tasks, self.stream_mark.last_task, gap)
        self.acked_up_to = self.stream_mark.offset + continuation.sequence
        self.next_sequence = max(self.next_sequence, self.acked_up_to)
        if self._end_at_start is None:
            self._end_at_start = self.stream_mark.offset + stream.last_seq if stream.num_messages else 0
        if gap is not None:
            self.gap = gap
            self._note_gap(continuation.sequence if stream.num_messages else stream.last_seq + 1)
        return continuation.sequence

    def note_task(self, sequence: int) -> None:
        """Note the stream sequence of a task that this learner has published."""
        self.stream_mark = replace(self.stream_mark, last_task=max(sequence, self.stream_mark.last_task))

    @property
    def has_caught_up(self) -> bool:
        """Whether all is read that the stream had when this learner first looked."""
        return self._end_at_start is not None and self.next_sequence > self._end_at_start

    def _note_gap(self, sequence: int) -> None:
        """Hand the gap on once everything before a stream sequence is read that the stream has kept."""
        if self.gap is not None and sequence > self.gap.last:
            self.gaps.put_nowait(self.gap)
            self.gap = None

    async def _consume_until_gap(self, puller: PullConsumer) -> bool:
        """Read until a message is missing or the reader stops; return False after a reconnection."""
        reconnected = 0
        ended = await first_completed(self._bus.reconnected.wait(), self._consume(puller), self._poll_delivered_count())
        return reconnected not in ended

    async def _consume(self, puller: PullConsumer) -> None:
        """Read until a message arrives out of order."""
        async for message in puller:
            message.free_slot()
            if message.consumer_sequence == self._next_delivery:
                self._next_delivery += 1
                self._on_in_order(message)
            elif self._next_delivery > 1:  # otherwise it may have been in transit before the reset
                return

    async def _poll_delivered_count(self) -> None:
        """Poll until the broker has delivered a message that did not arrive here, even if none follows."""
        num_delivered = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            come = self._next_delivery - 1
            try:
                stream, backlog = await self.fill.refresh()
            except (NatsError, BusError):
                continue
            # What was on its way at the look before came ahead of this answer; a count that falls was reset by another.
            now = backlog.num_delivered
            if self._next_delivery <= num_delivered or now < come or stream.created_at != self.stream_mark.created:
                return
            num_delivered = now
            if self.fill.is_filling:
                self.attempt_ended.set()

    def _on_in_order(self, message: Message) -> None:
        position = self.stream_mark.offset + message.sequence
        if position >= self.next_sequence:
            self._assemble(message, position)
            self.next_sequence = position + 1
            self.stream_mark = replace(self.stream_mark, last=message.sequence)
            if position == self._end_at_start:
                self.attempt_ended.set()
        self._note_gap(message.sequence + 1)
        if not self._unacked or message.sequence > self._unacked[-1].sequence:  # otherwise redelivered after `ack_wait`
            message.data = b""  # held only to be acknowledged
            self._unacked.append(message)

    def replay_position(self) -> int:
        """Return the position from which a replay sees everything unused again."""
        waiting = [rollout.first_sequence for rollout in self.groups.pending_rollouts()]
        return min([self.next_sequence, *filter(None, [self._assembler.oldest_pending_sequence()]), *waiting])

    def mark_consumed(self, rollouts: Iterable[Rollout]) -> None:
        """Mark rollouts as trained or useless, so that a replay skips them."""
        self._consumed |= {rollout.execution_id: rollout.last_sequence for rollout in rollouts}

    def consumed_since(self, position: int) -> dict[str, int]:
        """Return the used executions that a replay from a position would bring again; forget the others."""
        self._consumed = {what: last for what, last in self._consumed.items() if last >= position}
        return dict(self._consumed)

    def expire(self) -> float | None:
        """Close the groups whose time is up; seconds until the next one's is, None if no group is open."""
        left = self.groups.expire(time.monotonic())
        self._assembler.discard(self.groups.closed)
        return left

    async def acknowledge(self, position: int) -> None:
        """Acknowledge everything before ``position``, which a checkpoint covers."""
        self.acked_up_to = max(position, self.acked_up_to)
        self.attempt_ended.set()
        last: Message | None = None
        while self._unacked and self.stream_mark.offset + self._unacked[0].sequence < position:
            last = self._unacked.popleft()
        if last is not None:
            await last.ack()  # acknowledges all before it too

    def _assemble(self, message: Message, position: int) -> None:
        try:
            batch = message.decode_as(SpanBatch)
        except DecodeError as error:
            self._leave_out(message, error)  # the store keeps it as dead letter
            return
        try:
            self._add(batch, position)
        except DecodeError as error:
            self._leave_out(message, error)
        except Exception as error:  # any error: reading it again gives the same
            count_fault(f"span batch {message.sequence} is left out", error)
            metrics.rejected_batches.inc()
            reason = shorten_line(f"cannot be read: {type(error).__name__}: {error}", 200)
            unreadable = build_unreadable(batch, position, reason)
            if unreadable is not None:
                self._take(unreadable)

    def _leave_out(self, message: Message, error: DecodeError) -> None:
        log.warning("span batch %d is left out: %s", message.sequence, error)
        metrics.rejected_batches.inc()

    def _add(self, batch: SpanBatch, position: int) -> None:
        if not batch.sample_index < batch.group_size <= MAX_GROUP_SIZE:
            raise DecodeError(f"sample {batch.sample_index} of {batch.group_size} is none of a group")
        if batch.run_id != self._settings.run or batch.execution_id in self._consumed:
            return
        if batch.task_id in self.groups.closed:  # too late to be used, so only its end is of interest
            rollout = (
                build_rollout([batch], position, position, *self._sets.find_rules(batch.task_id)) if batch.end else None
            )
        else:
            rollout = self._assembler.add(batch, position)
        if rollout is not None:
            self._take(rollout)

    def _take(self, rollout: Rollout) -> None:
        is_late = rollout.task_id in self.groups.closed
        self.groups.add(rollout, time.monotonic())
        if rollout.task_id in self.groups.closed:
            self._assembler.discard([rollout.task_id])
        if not is_late:
            self.on_rollout(rollout)
        self.attempt_ended.set()

    def _is_valid(self, rollout: Rollout) -> bool:
        return training_reward(rollout, self._settings.failed_rollouts) is not None
