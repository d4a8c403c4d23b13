"""Keeps a page's reader on the data of a run: its process, then its files until a store wants them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from lightningbus.bus.errors import BusError
from lightningbus.common.aio import cancel_and_wait
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.run_data import NoStoreError, RunData
from lightningbus.run.run_data.store_files import FilesInUseError
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.clickhouse.client import StoreUnreachableError
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.ui.client import HANDOVER_SECONDS, Reader, StoreState

CHECK_SECONDS = 1.0
"""Between two checks that a store still answers."""
RETRY_SECONDS = 0.5
"""Between two tries to find a store that answers."""
NO_RUN_YET = (
    "there is no run here yet: `lightningbus train -c run.yaml` starts one, `lightningbus init first` writes a project "
    "for it, and `lightningbus demo` needs neither"
)
GOES_ON = "This page goes on by itself as soon as a store or the run's files can be read."
OPENING_ERRORS = (UserError, BusError, StoreUnreachableError)
"""Errors of `RunData.open`."""


class FollowedRun(NamedTuple):
    """A run that is followed: its reader, the task that keeps it, and why nothing can be read, empty if it can."""

    reader: Reader
    following: "asyncio.Task[None]"
    problem: str


@asynccontextmanager
async def followed(run: RunDirectory | None, url: str | None, database: str) -> AsyncIterator[FollowedRun]:
    """Follow the store at ``url``, else that of ``run``, else that of the latest run, while the block runs.

    Raises `UserError`, `BusError` or `StoreUnreachableError` if it cannot be opened. The first run is waited for.
    """
    reader, data = Reader(), RunData(run, url, database, UI)
    tasks: list[asyncio.Task[None]] = []
    problem = ""
    try:
        try:
            await _open(reader, data)
        except NoStoreError as error:
            _lose(reader, error)
            problem = NO_RUN_YET
        tasks.append(asyncio.create_task(_follow(reader, data)))
        yield FollowedRun(reader, tasks[0], problem)
    finally:
        await cancel_and_wait(*tasks)
        await asyncio.to_thread(data.close)


async def _follow(reader: Reader, data: RunData) -> None:
    while True:
        try:
            if not data.is_open:
                await _open(reader, data)
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(data.check)
        except OPENING_ERRORS as error:
            _lose(reader, error)
            await asyncio.sleep(RETRY_SECONDS)


async def _open(reader: Reader, data: RunData) -> None:
    client = await asyncio.to_thread(data.open)
    reader.use(client, StoreState.FINISHED if data.is_on_files else StoreState.LIVE)


def _lose(reader: Reader, error: Exception) -> None:
    sentence = NO_RUN_YET if isinstance(error, NoStoreError) else str(error)
    patience = HANDOVER_SECONDS if isinstance(error, FilesInUseError) else None
    reader.lose(f"{sentence[0].upper()}{sentence[1:]}. {GOES_ON}", patience)
