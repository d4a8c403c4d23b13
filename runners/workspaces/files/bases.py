"""The files that workspaces begin with, each fetched once by a runner and shared by its copies."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.runners.agent.process import remove_directory
from lightningbus.runners.workspaces.errors import WorkspaceFailedError

log = logging.getLogger(__name__)

FETCH_SECONDS = 600.0
"""Longest time for the files of one workspace; a file system that hangs must not hold up a slot for ever."""


@dataclass
class _Base:
    path: Path
    fetching: asyncio.Task[None]
    num_users: int = 0
    last_use: int = field(default=0)


class BaseCache:
    """Directories by what they were made from; those without a user are removed beyond ``capacity``, oldest first."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory, self._capacity = directory, capacity
        self._bases: dict[Hashable, _Base] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def using(self, key: Hashable, fetch: Callable[[Path], Coroutine[Any, Any, None]]) -> AsyncIterator[Path]:
        """Keep the directory of ``key`` while the block runs; the first caller has ``fetch`` make it.

        Raises what ``fetch`` raises, and `WorkspaceFailedError` beyond `FETCH_SECONDS`.
        """
        base = self._bases.get(key)
        if base is None:
            path = self._directory / str(next(self._numbers))
            base = self._bases[key] = _Base(path, asyncio.create_task(fetch(path)))
        base.num_users += 1
        try:
            await self._wait(base)
            yield base.path
        finally:
            base.num_users -= 1
            base.last_use = next(self._numbers)
            await self._evict()

    async def _wait(self, base: _Base) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                await asyncio.shield(base.fetching)
        except TimeoutError:
            raise WorkspaceFailedError(f"the files of a workspace were not there in {FETCH_SECONDS:g} s") from None

    async def _evict(self) -> None:
        """Remove what failed, and the oldest beyond the capacity."""
        unused = {key: base for key, base in self._bases.items() if base.num_users == 0 and base.fetching.done()}
        failed = [key for key, base in unused.items() if base.fetching.cancelled() or base.fetching.exception()]
        kept = sorted(unused.keys() - failed, key=lambda key: unused[key].last_use)
        removed = [*failed, *kept[: max(0, len(self._bases) - len(failed) - self._capacity)]]
        for key in removed:
            del self._bases[key]
        with contextlib.suppress(asyncio.CancelledError):
            paths = [unused[key].path for key in removed if unused[key].path.exists()]
            await asyncio.gather(*(asyncio.to_thread(remove_directory, path) for path in paths))
