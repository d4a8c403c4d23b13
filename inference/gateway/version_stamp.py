"""Passes a response's server-sent events on, each stamped with its weight version as it arrives."""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from lightningbus.inference.engine.base import EngineError, EngineResponse

StampEvent = Callable[[bytes], bytes]
log = logging.getLogger(__name__)

EVENT_START = b"data: {"
EVENT_END = b"\n\n"
KEEPALIVE_SECONDS = 10.0
SSE_KEEPALIVE = b": still here\n\n"
"""A comment sent after `KEEPALIVE_SECONDS` without an event: a slow response differs from a dead connection."""


def stamp_event(
    event: bytes, version: int, engine_id: str = "", engine_model: str = "", public_model: str = ""
) -> bytes:
    """Insert ``weight_version`` and ``engine_id`` as the first fields of a server-sent event's JSON object.

    ``engine_model``: the model's name inside vLLM, which is replaced by ``public_model``, the one that was requested.
    """
    if not event.startswith(EVENT_START):
        return event
    if engine_model:  # quotes in a string are escaped, so this matches the field and no generated text
        event = event.replace(b'"model":"%b"' % engine_model.encode(), b'"model":"%b"' % public_model.encode(), 1)
    stamp = b'"weight_version":%d,"engine_id":"%b",' % (version, engine_id.encode())
    return b"%b%b%b" % (EVENT_START, stamp, event[len(EVENT_START) :])


async def flush_pending_chunks() -> None:
    """Stamp every chunk that has reached this process; call between pause and resume."""
    for _ in range(4):  # one iteration of the event loop each: socket read, stream fed, reader woken, chunk stamped
        await asyncio.sleep(0)


def add_cache_salt(body: bytes, version: int, engine_model: str = "") -> bytes:
    """Add a cache salt to the request, so that a prefix computed by other weights is never reused.

    ``engine_model``: the name of the model to send it to; the last of two JSON fields with one name counts.
    """
    stripped = body.rstrip()
    if not stripped.endswith(b"}") or len(stripped) < 3:
        return body
    model = b',"model":"%b"' % engine_model.encode() if engine_model else b""
    return b'%b,"cache_salt":"v%d"%b}' % (stripped[:-1], version, model)


async def stream(request: web.Request, upstream: EngineResponse, stamp: StampEvent) -> web.StreamResponse:
    """Pass a stream of events on, each stamped as it arrives, however slowly the client reads."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    events = _StampedEvents()
    reading = asyncio.create_task(_read(upstream, stamp, events))
    try:
        while data := await events.take():
            await response.write(data)
        await reading
    except EngineError as error:
        log.warning("%s", error)
        if request.transport is not None:
            request.transport.abort()  # shows the runner that the stream is incomplete
    except ConnectionResetError:
        log.debug("the client left before its answer had ended")
    finally:
        reading.cancel()
    return response


class _StampedEvents:
    """Events on their way from the engine to a client that may be slower."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def add_events(self, data: bytes) -> None:
        """Add whole events, stamped."""
        self._events.append(data)
        self._wake()

    def end(self) -> None:
        """Mark the end of the events."""
        self._has_ended = True
        self._wake()

    async def take(self) -> bytes:
        """Take all events since the last call, or a comment after `KEEPALIVE_SECONDS` without any; empty at the end."""
        if not self._events and not self._has_ended:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            # A timeout for each event would cost three times as much.
            timer = loop.call_later(KEEPALIVE_SECONDS, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
            if not self._events and not self._has_ended:
                return SSE_KEEPALIVE
        events, self._events = self._events, []
        return events[0] if len(events) == 1 else b"".join(events)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _read(upstream: EngineResponse, stamp: StampEvent, events: _StampedEvents) -> None:
    # Separate from writing, so that a slow client never delays the stamp.
    remainder = b""
    try:
        async for data in upstream.chunks():
            *complete, remainder = (remainder + data).split(EVENT_END)
            if complete:
                events.add_events(b"".join([stamp(event) + EVENT_END for event in complete]))
    finally:
        events.end()
