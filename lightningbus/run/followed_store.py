"""The store that an open page reads: a process while it runs, then the run's files until a store wants them."""

import asyncio
import os

from clickhouse_connect.driver.client import Client

from bus.directory_lock import is_wanted, lock_for_reading
from bus.errors import BusError
from lightningbus.run.role_process import UserError
from lightningbus.run.run_directory import RunDirectory
from lightningbus.run.store_discovery import NO_STORE, SQL_VARIABLE, find_running_store
from store.clickhouse.client import StoreUnreachable, connect_readonly
from store.clickhouse.query_limits import UI
from store.embedded.engine import EngineBusy
from store.service import serve_readonly
from store.ui.client import Reader, StoreState

PING_SECONDS = 1.0
"""Between two checks that a store still answers."""
RETRY_SECONDS = 1.0
"""Between two tries to find a store that answers."""
WANTED_SECONDS = 0.2
"""Between two checks whether another process wants the files."""
GOES_ON = "This page goes on by itself as soon as a store or the run's files can be read."


class FollowedStore:
    """Keeps a `Reader` on the store at ``url``, else on the latest run's: its store process, or its files."""

    def __init__(self, reader: Reader, url: str | None, database: str) -> None:
        self._reader, self._database = reader, database
        self._url = url or os.environ.get(SQL_VARIABLE)
        self._opened = asyncio.Event()

    async def wait_until_opened(self) -> None:
        """Wait for the first store; see `follow` for how it may fail."""
        await self._opened.wait()

    async def follow(self) -> None:
        """For ever. Before the first store has answered it raises `UserError`, `BusError` or `StoreUnreachable`."""
        while True:
            try:
                await self._follow_until_gone()
            except (UserError, BusError, StoreUnreachable) as error:
                if not self._opened.is_set():
                    raise
                sentence = str(error)
                self._reader.lose(f"{sentence[0].upper()}{sentence[1:]}. {GOES_ON}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_until_gone(self) -> None:
        if url := self._url or await find_running_store():
            await self._read_process(url)
        elif (run := RunDirectory.latest()) is None or not run.has_stored_data():
            raise UserError(NO_STORE)
        else:
            await self._read_files(run)

    async def _read_process(self, url: str) -> None:
        client = await asyncio.to_thread(connect_readonly, url, self._database, UI)
        self._use(client, StoreState.LIVE)
        while True:
            await asyncio.sleep(PING_SECONDS)
            if not await asyncio.to_thread(client.ping):
                self._reader.lose(f"The store at {url} does not answer. {GOES_ON}")
                return

    async def _read_files(self, run: RunDirectory) -> None:
        try:
            async with serve_readonly(run.store, lock_for_reading) as address:
                self._use(await asyncio.to_thread(connect_readonly, address, self._database, UI), StoreState.FINISHED)
                await _wait_until_wanted(run)
                self._reader.lose(f"Another process has opened the files of run {run.path.name}. {GOES_ON}")
        except EngineBusy as error:
            raise UserError(str(error)) from error

    def _use(self, client: Client, state: StoreState) -> None:
        self._reader.use(client, state)
        self._opened.set()


async def _wait_until_wanted(run: RunDirectory) -> None:
    """Wait until another process wants the run's files, or another run is the latest."""
    while True:
        await asyncio.sleep(WANTED_SECONDS)
        latest = RunDirectory.latest()
        if is_wanted(run.store) or (latest is not None and latest.path != run.path):
            return
