"""Answers for a streaming agent."""

from contextlib import suppress
from typing import Any

from aiohttp import web

from lightningbus.runners.protocol.dialects.base import Dialect


class StreamNotResumableError(Exception):
    """An answer whose beginning the agent has seen can be neither continued nor restarted."""


class AgentDisconnectedError(Exception):
    """The agent has closed its connection before the answer's end."""


class SseResponse:
    """An answer for a streaming agent: chunk by chunk, or all at the end where it could not be resumed."""

    def __init__(self, request: web.Request, dialect: Dialect, live: bool) -> None:
        self._request, self._dialect, self._live = request, dialect, live
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        self._events = dialect.events()
        self._kept: list[bytes] = []
        self.has_begun = False

    async def send_chunk(self, chunk: dict[str, Any], tokens: int) -> None:
        """Send one chunk. Chunks before the first token are buffered, so that the stream can still be restarted."""
        self._kept.append(self._events.on_chunk(chunk))
        if self._live and tokens:
            await self._flush()

    def restart(self) -> None:
        """Drop the buffered chunks; raise `StreamNotResumableError` when some have been sent."""
        if self.has_begun:
            raise StreamNotResumableError("the answer broke off where it cannot be gone on with")
        self._kept.clear()
        self._events = self._dialect.events()

    async def finish(self) -> web.StreamResponse:
        """Send the end of a complete answer."""
        self._kept.append(self._events.finish())
        return await self._end()

    async def fail(self, reason: str, status: int = 500) -> web.StreamResponse:
        """End the stream with an error; ``status`` shows whether agent or server is at fault."""
        self._kept = [self._events.fail(reason, status)]
        return await self._end()

    async def _end(self) -> web.StreamResponse:
        with suppress(ConnectionError):  # a client that stops reading has what it wants
            await self.response.write_eof(await self._begin())
        return self.response

    async def _flush(self) -> None:
        try:
            await self.response.write(await self._begin())
        except ConnectionError as error:
            raise AgentDisconnectedError from error

    async def _begin(self) -> bytes:
        """Begin the answer if needed, and return the buffered bytes."""
        if not self.has_begun:
            self.has_begun = True
            await self.response.prepare(self._request)
        data, self._kept = b"".join(self._kept), []
        return data
