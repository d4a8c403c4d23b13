"""The store that an open page reads: a process while it runs, then the run's files until a store wants them."""

import asyncio
import os

from clickhouse_connect.driver.client import Client

from lightningbus.bus.directory_lock import is_wanted
from lightningbus.bus.errors import BusError
from lightningbus.common.aio import first_completed
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.store_discovery import NO_RUN_YET, NO_STORE, SQL_VARIABLE, find_running_store
from lightningbus.run.run_data.store_files import open_shared_files
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.clickhouse.client import StoreUnreachableError, connect_readonly
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.ui.client import HANDOVER_SECONDS, Reader, StoreState

PING_SECONDS = 1.0
"""Between two checks that a store still answers."""
RETRY_SECONDS = 0.5
"""Between two tries to find a store that answers."""
LATEST_SECONDS = 1.0
"""Between two checks whether another run is the latest."""
GOES_ON = "This page goes on by itself as soon as a store or the run's files can be read."


class NoRunYetError(UserError):
    """There is nothing to read, and may be soon."""


class FollowedStore:
    """Keeps a `Reader` on the store at ``url``, else on that of ``run``, else on the latest run's: process or files."""

    def __init__(self, reader: Reader, url: str | None, database: str, run: RunDirectory | None = None) -> None:
        self._reader, self._database, self._run = reader, database, run
        self._url = url or (os.environ.get(SQL_VARIABLE) if run is None else None)
        self._opened = asyncio.Event()
        self._problem = ""

    async def wait_until_opened(self) -> str:
        """Wait for the first store, or until there is no run yet; returns why nothing can be read, empty if it can.

        See `follow` for how it may fail.
        """
        await self._opened.wait()
        return self._problem

    async def follow(self) -> None:
        """For ever. Before the first store has answered it raises `UserError`, `BusError` or `StoreUnreachableError`.

        The first run is waited for.
        """
        while True:
            try:
                await self._follow_until_gone()
            except NoRunYetError as error:
                self._lose(error)
                self._problem = str(error)
                self._opened.set()
            except (UserError, BusError, StoreUnreachableError) as error:
                if not self._opened.is_set():
                    raise
                self._lose(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _lose(self, error: Exception) -> None:
        sentence = str(error)
        self._reader.lose(f"{sentence[0].upper()}{sentence[1:]}. {GOES_ON}")

    async def _follow_until_gone(self) -> None:
        if url := await self._find_process():
            await self._read_process(url)
        elif (run := self._run or RunDirectory.latest()) is None or not run.has_stored_data():
            raise UserError(NO_STORE) if self._run is not None else NoRunYetError(NO_RUN_YET)
        else:
            await self._read_files(run)

    async def _find_process(self) -> str | None:
        if self._run is None:
            return self._url or await find_running_store()
        endpoints = self._run.read_endpoints()
        return endpoints.sql if endpoints is not None and endpoints.sql else None

    async def _read_process(self, url: str) -> None:
        client = await asyncio.to_thread(connect_readonly, url, self._database, UI)
        self._use(client, StoreState.LIVE)
        while True:
            await asyncio.sleep(PING_SECONDS)
            if not await asyncio.to_thread(client.ping):
                self._reader.lose(f"The store at {url} does not answer. {GOES_ON}")
                return

    async def _read_files(self, run: RunDirectory) -> None:
        if self._opened.is_set() and is_wanted(run.store):  # no process is started only to be refused
            self._hand_over(run)
            return
        async with open_shared_files(run.store) as (url, process):
            self._use(await asyncio.to_thread(connect_readonly, url, self._database, UI), StoreState.FINISHED)
            await first_completed(process.wait(), self._wait_for_another_latest(run))
            self._hand_over(run)

    def _hand_over(self, run: RunDirectory) -> None:
        self._reader.lose(
            f"Another process has opened the files of run {run.path.name}. {GOES_ON}", patience=HANDOVER_SECONDS
        )

    async def _wait_for_another_latest(self, run: RunDirectory) -> None:
        while True:
            latest = RunDirectory.latest()
            if self._run is None and latest is not None and latest.path != run.path:
                return
            await asyncio.sleep(LATEST_SECONDS)

    def _use(self, client: Client, state: StoreState) -> None:
        self._reader.use(client, state)
        self._problem = ""
        self._opened.set()
