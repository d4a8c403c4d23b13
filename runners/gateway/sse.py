"""What a streaming agent gets."""

from typing import Any

from aiohttp import web

from runners.protocol.dialects.base import Dialect


class CannotGoOn(Exception):
    """An answer the agent has seen the beginning of can neither be gone on with nor begun anew."""


class AgentStream:
    """What a streaming agent gets: chunk by chunk, or, where nothing could be gone on with, all of it at the end."""

    def __init__(self, request: web.Request, dialect: Dialect, live: bool) -> None:
        self._request, self._dialect, self._live = request, dialect, live
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        self._events = dialect.events()
        self._kept: list[bytes] = []
        self.begun = False

    async def say(self, chunk: dict[str, Any], tokens: int) -> None:
        """One chunk of an answer that has so many tokens by now; what comes before the first can be said anew."""
        self._kept.append(self._events.take(chunk))
        if self._live and tokens:
            await self._flush()

    def begin_anew(self) -> None:
        """Forget what was kept back; raises `CannotGoOn` when some of it has been said."""
        if self.begun:
            raise CannotGoOn("the answer broke off where it cannot be gone on with")
        self._kept.clear()
        self._events = self._dialect.events()

    async def done(self) -> web.StreamResponse:
        """The answer is whole."""
        self._kept.append(self._events.end())
        await self._flush()
        return self._response

    async def fail(self, reason: str) -> web.StreamResponse:
        """It will not be."""
        self._kept = [self._events.failed(reason)]
        await self._flush()
        return self._response

    async def _flush(self) -> None:
        if not self.begun:
            self.begun = True
            await self._response.prepare(self._request)
        said, self._kept = b"".join(self._kept), []
        await self._response.write(said)
