"""A recorder of the wire: a JetStream consumer of its own for each stream, by nats-py alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgpack
import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

STREAMS = {
    "TRAIN_ROLLOUTS": "lb.rollout.train",
    "EVAL_ROLLOUTS": "lb.rollout.eval",
    "EVENTS": "lb.event.>",
    "WEIGHTS": "lb.weights.version.>",
}
NAME = "history"
FETCH_SECONDS, BATCH = 1.0, 100
STUCK_SECONDS = 60.0
"""A pull that takes longer is lost: nats-py waits for ever where the server stood still in the middle of it."""
DROPPED = (nats.errors.Error, APIError, OSError)
"""Errors of a server that is being started again."""


@dataclass(slots=True)
class Message:
    """One message as the server stored it."""

    subject: str
    headers: dict[str, str]
    payload: bytes


@dataclass(slots=True)
class Recorder:
    """Everything stored since the recorder began to listen."""

    client: Client
    stored: dict[tuple[str, int], Message] = field(default_factory=dict)
    """Messages by stream and sequence."""
    ended: set[str] = field(default_factory=set)
    """Rollouts that have a result."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream of the server."""
        return self.client.jetstream(timeout=5)

    def messages(self) -> list[tuple[str, bytes]]:
        """Return subjects and payloads, each stream in its order."""
        return [(message.subject, message.payload) for _, message in sorted(self.stored.items())]

    async def count(self, number: int) -> None:
        """Wait until so many rollouts have ended."""
        while len(self.ended) < number:
            self.news.clear()
            await self.news.wait()

    async def drained(self) -> None:
        """Wait until no task is left, and the store and this recorder have taken every message."""
        while True:
            with suppress(*DROPPED):
                tasks = (await self.jetstream.stream_info("TASKS")).state.messages
                readers = [
                    await self.jetstream.consumer_info(stream, name) for stream in STREAMS for name in ("store", NAME)
                ]
                if not tasks and not any(reader.num_pending or reader.num_ack_pending for reader in readers):
                    return
            await asyncio.sleep(0.2)

    async def listen(self, stream: str) -> None:
        """Record one stream for ever."""
        subscription: JetStreamContext.PullSubscription | None = None
        while True:
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    if subscription is None:
                        subscription = await self.subscribe(stream)
                    for message in await subscription.fetch(BATCH, timeout=FETCH_SECONDS):
                        self._hear(stream, message.metadata.sequence.stream, message)
                        await message.ack()
            except nats.errors.TimeoutError:  # nothing new
                continue
            except DROPPED:
                subscription = None
                await asyncio.sleep(0.1)
            self.news.set()

    async def subscribe(self, stream: str) -> JetStreamContext.PullSubscription:
        """Make the consumer of a stream if it is not there, and pull from it."""
        return await self.jetstream.pull_subscribe(STREAMS[stream], durable=NAME, stream=stream)

    def _hear(self, stream: str, sequence: int, message: Any) -> None:
        self.stored[stream, sequence] = Message(message.subject, dict(message.headers or {}), message.data)
        if message.subject.startswith("lb.rollout."):
            event = msgpack.unpackb(message.data, strict_map_key=False)
            if event.get("end") and event["end"].get("is_final", True):
                self.ended.add(event["rollout_id"])


@asynccontextmanager
async def recording(url: str) -> AsyncIterator[Recorder]:
    """Record all streams of a bus for the block."""
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore)
    recorder = Recorder(client)
    for stream in STREAMS:
        await recorder.subscribe(stream)  # before anything is published
    try:
        async with asyncio.TaskGroup() as group:
            listeners = [group.create_task(recorder.listen(stream)) for stream in STREAMS]
            yield recorder
            for listener in listeners:
                listener.cancel()
    finally:
        await client.close()


async def _ignore(error: Exception) -> None:
    """Servers are killed here: their clients connect again by themselves."""
