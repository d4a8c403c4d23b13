"""Share of the bus taken by rollouts that no checkpoint covers."""

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import Backlog, StreamState, learner_consumer
from lightningbus.learner.rollouts.capacity import FULL, Capacity, filled_share


class StreamFill:
    """The learner's share of the bus, by the last read."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus, self._consumer = bus, learner_consumer(model)
        self.share = 0.0
        """Share of the bus's room, from 0 to 1, taken by rollouts that the learner has not acknowledged."""

    @property
    def is_filling(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.share >= FULL

    async def capacity(self) -> Capacity:
        """Read the room on the bus for the learner; raise `BusError` without streams, and nats' errors."""
        return _capacity(*await self._fetch())

    async def refresh(self) -> tuple[StreamState, Backlog]:
        """Look at the stream and what the learner has to do yet; raises as `capacity`."""
        stream, backlog = await self._fetch()
        capacity = _capacity(stream, backlog)
        self.share = filled_share(
            backlog.num_ack_pending, backlog.num_pending, stream.num_messages, stream.num_bytes, capacity
        )
        return stream, backlog

    async def _fetch(self) -> tuple[StreamState, Backlog]:
        return await self._bus.stream_state(self._consumer.stream), await self._bus.backlog(self._consumer)


def _capacity(stream: StreamState, backlog: Backlog) -> Capacity:
    return Capacity(stream.max_bytes, stream.max_messages, backlog.max_ack_pending)
