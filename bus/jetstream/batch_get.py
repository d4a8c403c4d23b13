"""Several stored messages for one request, without a consumer: a batched Direct Get (ADR-31)."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.nats_client import FastReconnectClient

SEQUENCE = "Nats-Sequence"
"""The header with a message's sequence in its stream."""
STATUS = "Status"
END_STATUS = ("204", "404")
"""Statuses that end an answer: 204 after the last message, 404 without any."""


@asynccontextmanager
async def batch_get(
    nc: FastReconnectClient, stream: str, request: Mapping[str, object], seconds: float
) -> AsyncIterator[AsyncIterator[Msg]]:
    """Request messages and iterate over them as they come; the block may leave early.

    After a reconnect the rest is requested at once. The iteration raises `BusError` when the stream does not answer, or
    is silent for ``seconds``.
    """
    reading = _Reading(nc, stream, request)
    nc.reconnect_listeners.add(reading.interrupt)
    try:
        await reading.send()
        yield reading.read_messages(seconds)
    finally:
        nc.reconnect_listeners.discard(reading.interrupt)
        await reading.close()


class _Reading:
    """The messages that answer a request, and what is still to be requested."""

    def __init__(self, nc: FastReconnectClient, stream: str, request: Mapping[str, object]) -> None:
        self._nc, self._stream, self._request = nc, stream, dict(request)
        self._messages: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Subscription | None = None

    def interrupt(self) -> None:
        """Note that no further message of the last request comes."""
        self._messages.put_nowait(None)

    async def send(self) -> None:
        """Request what has not come, on an inbox of its own: what an earlier request leads to is left out."""
        await self.close()
        self._messages = asyncio.Queue()
        inbox = self._nc.new_inbox()
        self._subscription = await self._nc.subscribe(inbox, cb=self._messages.put)
        payload = json.dumps(self._request).encode()
        await self._nc.publish(f"$JS.API.DIRECT.GET.{self._stream}", payload, reply=inbox)

    async def close(self) -> None:
        """Receive nothing more."""
        if self._subscription is not None and self._nc.is_connected:
            await self._subscription.unsubscribe()
        self._subscription = None

    async def read_messages(self, seconds: float) -> AsyncIterator[Msg]:
        """Iterate over the messages; see `batch_get`."""
        stream = self._stream
        while self._request.get("batch") != 0:
            try:
                async with asyncio.timeout(seconds):
                    message = await self._messages.get()
            except TimeoutError:
                raise BusError(f"stream {stream} cannot be looked into: no answer within {seconds:g} s") from None
            if message is None:
                await self.send()
                continue
            headers = message.headers or {}
            if headers.get(STATUS) in END_STATUS:
                return
            if STATUS in headers:
                reason = headers.get("Description", headers[STATUS])
                raise BusError(f"stream {stream} cannot be looked into: {reason}")
            self._note(message)
            yield message

    def _note(self, message: Msg) -> None:
        self._request["seq"] = sequence_of(message) + 1
        if isinstance(num_left := self._request.get("batch"), int):
            self._request["batch"] = num_left - 1


def sequence_of(message: Msg) -> int:
    """Return the stream sequence of a message read by Direct Get."""
    return int((message.headers or {})[SEQUENCE])
