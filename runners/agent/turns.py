"""Turns at a process: many at once, or one alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Turns that are shared or exclusive; exclusive ones come first."""

    def __init__(self) -> None:
        self._num_sharing = self._num_waiting = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    @property
    def has_sharing(self) -> bool:
        """Whether the turns that are taken now are shared."""
        return self._num_sharing > 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Take a turn beside others that share."""
        while self._is_alone or self._num_waiting:
            await self._wait()
        self._num_sharing += 1
        try:
            yield
        finally:
            self._num_sharing -= 1
            self._changed.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Take a turn beside no other."""
        self._num_waiting += 1
        try:
            while self._is_alone or self._num_sharing:
                await self._wait()
            self._is_alone = True
        finally:
            self._num_waiting -= 1
            self._changed.set()
        try:
            yield
        finally:
            self._is_alone = False
            self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
