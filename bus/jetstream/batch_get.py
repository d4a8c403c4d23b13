"""Several stored messages for one request, without a consumer: a batched Direct Get (ADR-31)."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from lightningbus.bus.errors import BusError

SEQUENCE = "Nats-Sequence"
"""The header with a message's sequence in its stream."""
STATUS = "Status"
END_STATUS = ("204", "404")
"""Statuses that end an answer: 204 after the last message, 404 without any."""


@asynccontextmanager
async def batch_get(
    nc: Client, stream: str, request: Mapping[str, object], seconds: float
) -> AsyncIterator[AsyncIterator[Msg]]:
    """Request messages and iterate over them as they come; the block may leave early.

    The iteration raises `BusError` when the stream does not answer, or is silent for ``seconds``.
    """
    messages: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox, cb=messages.put)

    async def read_messages() -> AsyncIterator[Msg]:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    message = await messages.get()
            except TimeoutError:
                raise BusError(f"stream {stream} cannot be looked into: no answer within {seconds:g} s") from None
            headers = message.headers or {}
            if headers.get(STATUS) in END_STATUS:
                return
            if STATUS in headers:
                reason = headers.get("Description", headers[STATUS])
                raise BusError(f"stream {stream} cannot be looked into: {reason}")
            yield message

    try:
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
        yield read_messages()
    finally:
        if nc.is_connected:
            await subscription.unsubscribe()


def sequence_of(message: Msg) -> int:
    """Return the stream sequence of a message read by Direct Get."""
    return int((message.headers or {})[SEQUENCE])
