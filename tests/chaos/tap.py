"""What was said on the bus, heard by a reader of its own: the truth the store and the learner are held against."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVAL, STORE_EVENTS, STORE_TRAIN, ConsumerSpec
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.schemas.tasks import TaskBatchRecord
from lightningbus.schemas.training import TrainingStep
from lightningbus.schemas.trajectory.attempt_selection import Resolution, resolution_of, supersedes

CONSUMERS = tuple(replace(consumer, durable="tap") for consumer in (STORE_TRAIN, STORE_EVAL, STORE_EVENTS))
SLOTS = 256


@dataclass(frozen=True, slots=True)
class End:
    """How one execution ended."""

    rollout: str
    execution: str
    outcome: str
    error: str
    resolution: Resolution
    mode: str
    agent: str
    sequence: int


@dataclass
class Tap:
    """Everything published since it began to listen, once, in the stream's order."""

    bus: Bus
    published: set[str] = field(default_factory=set)
    spans: set[tuple[str, str, str]] = field(default_factory=set)
    """(rollout, execution, span id)"""
    ends: list[End] = field(default_factory=list)
    grades: list[RolloutGraded] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)
    """Rollouts that have had their last word, and when it was heard."""
    steps_by_model: dict[str, int] = field(default_factory=dict)
    _seen: set[tuple[str, int]] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Tap"]:
        """Listen while the block runs; the durable is gone afterwards."""
        for consumer in CONSUMERS:
            await self.bus.ensure_consumer(consumer)
        tasks = [asyncio.create_task(self._listen(consumer)) for consumer in CONSUMERS]
        try:
            yield self
        finally:
            await cancel_and_wait(*tasks)
            for consumer in CONSUMERS if self.bus.nc.is_connected else ():
                with suppress(NotFoundError):
                    await self.bus.js.delete_consumer(consumer.stream, consumer.durable)

    async def has(self, rollout: str) -> None:
        """Wait until a rollout has ended."""
        while rollout not in self.ended:
            self._news.clear()
            await self._news.wait()

    async def rollouts(self, count: int) -> None:
        """Wait until so many rollouts have ended."""
        while len(self.ended) < count:
            self._news.clear()
            await self._news.wait()

    @property
    def steps(self) -> int:
        """The steps of the model that has made most."""
        return max(self.steps_by_model.values(), default=0)

    async def steps_made(self, number: int, model: str = DEFAULT_POLICY) -> None:
        """Wait until the learner of a model has made so many steps."""
        while self.steps_by_model.get(model, 0) < number:
            self._news.clear()
            await self._news.wait()

    async def resume(self) -> None:
        """Read again from streams that have been made anew."""
        self._seen.clear()
        for consumer in CONSUMERS:
            await self.bus.ensure_consumer(consumer)

    async def _listen(self, consumer: ConsumerSpec) -> None:
        async with self.bus.pull(consumer, slots=SLOTS) as puller:
            async for message in puller:
                if (event := (message.stream, message.sequence)) not in self._seen:
                    self._seen.add(event)
                    self._hear(message.event(), message.sequence)
                await message.ack()

    def rollout_of(self) -> dict[str, End]:
        """Each rollout's attempt by the rule everybody goes by: the first result in stream order, or the first end."""
        by_name: dict[str, End] = {}
        for end in sorted(self.ends, key=lambda end: end.sequence):
            before = by_name.get(end.rollout)
            if supersedes(end.resolution, before.resolution if before else None):
                by_name[end.rollout] = end
        return by_name

    def _hear(self, event: object, sequence: int) -> None:
        if isinstance(event, TaskBatchRecord):
            self.published |= {task.rollout_id for task in event.tasks}
            self.spans |= {(task.rollout_id, "", task.span.span_id) for task in event.tasks}
        elif isinstance(event, TrainingStep):
            self.steps_by_model[event.model] = max(self.steps_by_model.get(event.model, 0), event.step)
            by_rollout = {use.rollout_id: use.execution_id for use in event.rollouts}
            for span in event.spans:
                rollout = str(span.attributes["lightningbus.rollout.id"])
                self.spans.add((rollout, by_rollout[rollout], span.span_id))
        elif isinstance(event, RolloutGraded):
            self.grades.append(event)
        elif isinstance(event, SpanBatch):
            self.spans |= {(event.rollout_id, event.execution_id, span.span_id) for span in event.spans}
            if event.end is not None:
                resolution = resolution_of(event.end)
                self.ends.append(
                    End(
                        rollout=event.rollout_id,
                        execution=event.execution_id,
                        outcome=event.end.outcome,
                        error=event.end.error,
                        resolution=resolution,
                        mode=event.mode,
                        agent=event.agent,
                        sequence=sequence,
                    )
                )
                if resolution != Resolution.RETRIED:
                    self.ended.setdefault(event.rollout_id, time.monotonic())
        self._news.set()
