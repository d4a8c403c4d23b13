"""An answer's events on their way through: each is marked with its version the moment it arrives."""

import asyncio
import logging
from collections.abc import Callable

import aiohttp
from aiohttp import web

StampEvent = Callable[[bytes], bytes]
log = logging.getLogger(__name__)

EVENT_START = b"data: {"
EVENT_END = b"\n\n"
KEEPALIVE_SECONDS = 10.0
SSE_KEEPALIVE = b": still here\n\n"
"""Said on a stream that has been quiet for so long, so that a slow answer is told from a dead connection."""


def stamp_event(event: bytes, version: int, inside: str = "", asked: str = "") -> bytes:
    """A server-sent event with ``weight_version`` as the first field of its JSON object.

    Of a model that has another name ``inside`` it says the one it was ``asked`` by.
    """
    if not event.startswith(EVENT_START):
        return event
    if inside:  # quotes within a string are escaped, so this is the field and nothing the model said
        event = event.replace(b'"model":"%b"' % inside.encode(), b'"model":"%b"' % asked.encode(), 1)
    return b'%b"weight_version":%d,%b' % (EVENT_START, version, event[len(EVENT_START) :])


def add_cache_salt(body: bytes, version: int, inside: str = "") -> bytes:
    """The request with a cache salt: a prefix computed by other weights is never reused.

    With ``inside`` it is one to the model of that name: of two fields of a name the last one counts.
    """
    closing = body.rstrip()
    if not closing.endswith(b"}") or len(closing) < 3:
        return body
    model = b',"model":"%b"' % inside.encode() if inside else b""
    return b'%b,"cache_salt":"v%d"%b}' % (closing[:-1], version, model)


async def stream(request: web.Request, answer: aiohttp.ClientResponse, mark: StampEvent) -> web.StreamResponse:
    """Pass a stream of events on, each marked as it arrives, however slowly they are read."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    events: asyncio.Queue[bytes | None] = asyncio.Queue()
    reading = asyncio.create_task(_read(answer, mark, events))
    try:
        while (event := await _next(events)) is not None:
            await response.write(event)
        await reading
    except aiohttp.ClientError as error:
        log.warning("an answer broke off: %s", str(error) or type(error).__name__)
        if request.transport is not None:
            request.transport.abort()  # so that the runner sees that it is not whole
    finally:
        reading.cancel()
    return response


async def _read(answer: aiohttp.ClientResponse, mark: StampEvent, events: asyncio.Queue[bytes | None]) -> None:
    # Apart from the writing, so that a slow reader of ours never delays the mark.
    rest = b""
    try:
        async for data in answer.content.iter_any():
            *whole, rest = (rest + data).split(EVENT_END)
            if whole:
                events.put_nowait(b"".join(mark(event) + EVENT_END for event in whole))
    finally:
        events.put_nowait(None)


async def _next(events: asyncio.Queue[bytes | None]) -> bytes | None:
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            return await events.get()
    except TimeoutError:
        return SSE_KEEPALIVE
