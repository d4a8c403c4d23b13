"""Answers read to their end after their last event, so that their connections serve further calls."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiohttp

END_SECONDS = 1.0
"""Seconds to wait for the end of an answer. A connection without one is closed."""


class ConnectionReuse:
    """Releases the connections of streamed answers in the background."""

    def __init__(self) -> None:
        self.reading: set[asyncio.Task[None]] = set()
        """Complete answers whose end has not come yet."""

    @contextmanager
    def releasing(self, response: aiohttp.ClientResponse) -> Iterator[Callable[[], None]]:
        """Release the connection after an answer; yield the function to call after its last event.

        An answer that is abandoned before that is broken off: its connection is closed, which ends the engine's work.
        """
        is_complete = asyncio.Event()
        try:
            yield is_complete.set
        finally:
            if not is_complete.is_set() or response.content.at_eof():
                response.release()
            else:
                task = asyncio.create_task(_read_to_end(response))
                self.reading.add(task)
                task.add_done_callback(self.reading.discard)


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(END_SECONDS):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError):
        pass
    finally:
        response.release()  # closes a connection that has not come to its end
