"""Batches of messages, published without a task for each.

A message that the server stores at the first attempt costs no task. Any other is retried by `Publisher`, beside the
rest. nats-py's ``publish_async`` needs no tasks either, but does not report a message that the server rejects.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.errors import BusError, PublishTimeoutError
from lightningbus.bus.jetstream.publisher import (
    ATTEMPT_SECONDS,
    PublishAck,
    Publisher,
    Reply,
    parse_reply,
    pipeline_full,
)
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import encode, schema_of

SENT_TOGETHER = 32
"""Messages that are sent under one time limit."""


class OutgoingMessage(NamedTuple):
    """A message of a batch."""

    subject: str
    payload: bytes
    headers: dict[str, str]


def encode_event(subject: str, event: Event, msg_id: str, traceparent: str | None = None) -> OutgoingMessage:
    """Encode an event as a message; raise `lightningbus.schemas.codec.EncodeError`."""
    headers = {subjects.SCHEMA_HEADER: schema_of(event), subjects.MSG_ID_HEADER: msg_id}
    if traceparent is not None:
        headers[subjects.TRACE_HEADER] = traceparent
    return OutgoingMessage(subject, encode(event), headers)


class _SentMessage(NamedTuple):
    """A message whose reply is expected; ``place`` is its index in the batch."""

    place: int
    token: str
    reply: asyncio.Future[Msg]
    sent_at: float


async def publish_batch(
    publisher: Publisher, messages: Sequence[OutgoingMessage], timeout: float, unique: bool = False
) -> list[int | BusError]:
    """Publish messages in order; return for each its stream sequence, or the error that `Publisher.publish` raises."""
    return await _Batch(publisher, messages, timeout, unique).run()


class _Batch:
    def __init__(self, publisher: Publisher, messages: Sequence[OutgoingMessage], timeout: float, unique: bool) -> None:
        self._publisher, self._messages, self._timeout, self._unique = publisher, messages, timeout, unique
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout
        self._results: dict[int, int | BusError] = {}
        self._sent: deque[_SentMessage] = deque()
        self._retries: set[asyncio.Task[None]] = set()
        self._num_slots = 0  # held

    async def run(self) -> list[int | BusError]:
        unsent = deque(range(len(self._messages)))
        try:
            while unsent:
                await self._send(await self._take_placed(unsent))
            while self._sent:
                await self._collect_oldest()
            await asyncio.gather(*self._retries)
        finally:
            await cancel_and_wait(*self._retries)
            for message in self._sent:
                self._publisher.forget(message.token)
            while self._num_slots:
                self._release_slot()
        return [self._results[index] for index in range(len(self._messages))]

    async def _take_placed(self, unsent: deque[int]) -> list[int]:
        """Take the next messages that have a place in the pipeline; wait for one only while no place is held unused."""
        slots, placed = self._publisher.slots, list[int]()
        while unsent and len(placed) < SENT_TOGETHER:
            if slots.locked():
                if placed:
                    break
                if self._sent:
                    await self._collect_oldest()
                    continue
            index = unsent.popleft()
            if slots.locked():
                try:
                    async with asyncio.timeout_at(self._deadline):
                        await slots.acquire()
                except TimeoutError:
                    full = pipeline_full(self._messages[index].subject, self._timeout)
                    self._results[index] = PublishTimeoutError(full)
                    continue
            else:
                await slots.acquire()  # at once: a time limit would cost more than it
            self._num_slots += 1
            placed.append(index)
        return placed

    async def _send(self, indices: Sequence[int]) -> None:
        left = deque(indices)
        try:
            async with asyncio.timeout_at(min(self._deadline, self._loop.time() + ATTEMPT_SECONDS)):
                while left:
                    index = left.popleft()
                    message = self._messages[index]
                    token, reply = self._publisher.expect_reply(message.subject)
                    self._sent.append(_SentMessage(index, token, reply, self._loop.time()))
                    try:
                        await self._publisher.send(token, *message)
                    except (BusError, NatsError) as error:
                        reply.set_exception(error)
        except TimeoutError:  # the connection is dead
            for index in left:
                self._retry(index, None)

    async def _collect_oldest(self) -> None:
        index, token, future, sent_at = self._sent.popleft()
        try:
            if not future.done():
                async with asyncio.timeout_at(min(self._deadline, sent_at + ATTEMPT_SECONDS)):
                    await future
            reply = parse_reply(future.result())
        except BusError as error:
            self._end(index, error)
            return
        except (TimeoutError, NatsError):
            reply = None
        finally:
            self._publisher.forget(token)
        if isinstance(reply, PublishAck) and not (reply.is_duplicate and self._unique):
            metrics.publish_duration.observe(self._loop.time() - sent_at)
            self._end(index, reply.sequence)
        else:
            self._retry(index, reply)

    def _retry(self, index: int, reply: Reply) -> None:
        self._retries.add(asyncio.create_task(self._publish_alone(index, reply)))

    async def _publish_alone(self, index: int, reply: Reply) -> None:
        message = self._messages[index]
        try:
            with metrics.publish_duration.time():
                sequence = await self._publisher.publish_until(
                    self._deadline, *message, self._timeout, self._unique, [reply]
                )
            self._end(index, sequence)
        except BusError as error:
            self._end(index, error)

    def _end(self, index: int, result: int | BusError) -> None:
        self._results[index] = result
        self._release_slot()

    def _release_slot(self) -> None:
        self._num_slots -= 1
        self._publisher.slots.release()
