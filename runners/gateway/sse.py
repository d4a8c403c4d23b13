"""Answers for a streaming agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from lightningbus.runners.protocol.dialects.base import Dialect

KEEPALIVE_SECONDS = 5.0
"""Seconds of silence after which an agent is told that its answer is being made: clients give up on silence."""


class StreamNotResumableError(Exception):
    """An answer whose beginning the agent has seen can be neither continued nor restarted."""


class AgentDisconnectedError(Exception):
    """The agent has closed its connection before the answer's end."""


class SseResponse:
    """An answer for a streaming agent: chunk by chunk, or all at the end where it could not be resumed."""

    def __init__(self, request: web.Request, dialect: Dialect) -> None:
        self._request, self._dialect = request, dialect
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        self._events = dialect.events()
        self._kept: list[bytes] = []
        self._lock = asyncio.Lock()
        self._has_written = False
        self.has_begun = False
        """Whether the agent has the head: an error comes in the stream from then on."""
        self.has_content = False
        """Whether the agent has some of the answer."""

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send something at least every `KEEPALIVE_SECONDS` while the block runs."""
        pinging = asyncio.create_task(self._ping())
        try:
            yield
        finally:
            pinging.cancel()
            await asyncio.wait([pinging])

    async def _ping(self) -> None:
        with suppress(ConnectionError):  # an agent that left is noticed where the answer is sent
            while True:
                self._has_written = False
                await asyncio.sleep(KEEPALIVE_SECONDS)
                if not self._has_written:
                    await self._write(self._events.ping())

    async def send_chunk(self, chunk: dict[str, Any], is_certain: bool) -> None:
        """Send one chunk, with those that waited. It waits while it is not certain, as the stream may be restarted."""
        self._kept.append(self._events.on_chunk(chunk))
        if is_certain:
            await self._flush()

    def restart(self) -> None:
        """Drop the buffered chunks; raise `StreamNotResumableError` when some have been sent."""
        if self.has_content:
            raise StreamNotResumableError("the answer broke off where it cannot be gone on with")
        self._kept.clear()
        self._events = self._dialect.events()

    async def finish(self) -> web.StreamResponse:
        """Send the end of a complete answer."""
        self._kept.append(self._events.finish())
        return await self._end()

    async def fail(self, reason: str, status: int = 500, code: str = "") -> web.StreamResponse:
        """End the stream with an error; ``status`` shows whether agent or server is at fault, ``code`` names it."""
        self._kept = [self._events.fail(reason, status, code)]
        return await self._end()

    async def _end(self) -> web.StreamResponse:
        with suppress(ConnectionError):  # a client that stops reading has what it wants
            await self._write(self._take())
            await self.response.write_eof()
        return self.response

    async def _flush(self) -> None:
        try:
            await self._write(self._take())
        except ConnectionError as error:
            raise AgentDisconnectedError from error

    def _take(self) -> bytes:
        """Return the buffered bytes, which are sent now."""
        self.has_content = True
        data, self._kept = b"".join(self._kept), []
        return data

    async def _write(self, data: bytes) -> None:
        """Send bytes, after the head."""
        async with self._lock:
            self._has_written = True
            if not self.has_begun:
                self.has_begun = True
                await self.response.prepare(self._request)
            await self.response.write(data)
