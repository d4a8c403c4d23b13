"""The data of a run: the process that stores it while the run is up, then the run's files."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.common.event_loop import run_blocking
from lightningbus.common.flat_settings import without_secrets
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.run_names import check_run
from lightningbus.run.run_data.store_files import FilesInUseError, StoreFiles
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect, may_find_bus
from lightningbus.run.run_directory.lookup import find_named_run, find_run_id
from lightningbus.store.clickhouse.client import DATABASE, StoreUnreachableError, connect_readonly
from lightningbus.store.clickhouse.damaged_parts import describe_damage
from lightningbus.store.clickhouse.query_limits import INTERACTIVE, QueryLimits, explain_error, is_unreachable

T = TypeVar("T")

SQL_VARIABLE = "LIGHTNINGBUS_SQL"
NO_STORE = (
    "no store is running and there is no run here: train first, start `lightningbus store`, or give --sql URL (in "
    "Python sql=URL)"
)
LISTEN_SECONDS = 2.5
"""A store says where it is once a second."""


class NoStoreError(UserError):
    """There is nothing to read, and may be soon."""


class StoreLostError(UserError):
    """The store does not answer any more; its run may have ended."""


class _Opened(NamedTuple):
    client: Client
    url: str
    files: StoreFiles | None

    def check(self) -> None:
        if self.files is not None:
            self.files.check()
        elif not self.client.ping():
            raise StoreLostError(f"the store at {self.url} does not answer")

    def close(self) -> None:
        self.client.close()
        if self.files is not None:
            self.files.close()


class RunData:
    """A client on the data of a run, opened when it is first needed. Calls block and may come from several threads.

    The data is at ``url``, else where the environment says. Else it is in the run's own store: the process, or the
    files once that has ended. A run without a store of its own here has one on the bus that knows the run. None stands
    for the latest run's store, else one on the bus, else the latest run's files.

    Files may be read by other processes at the same time, and are given up as soon as one wants to write them.
    """

    def __init__(
        self,
        run: RunDirectory | None,
        url: str | None = None,
        database: str = DATABASE,
        limits: QueryLimits = INTERACTIVE,
    ) -> None:
        self._run, self._url, self._database, self._limits = run, url or os.environ.get(SQL_VARIABLE), database, limits
        self._expected_run = str(run.path) if run is not None and self._url is None else ""
        """The run that a store other than its own must know; empty: none."""
        self._opened: _Opened | None = None
        self._opening = threading.Lock()
        self.damage = ""
        """A sentence about rows that are missing from each result, known once it is open; empty: none are."""

    @classmethod
    def of(cls, run: str, url: str | None, database: str) -> Self:
        """Find the data of a run by its name or directory; empty: of the latest.

        A store that is not the run's own raises `UserError` when it is opened, if it has no such run.
        """
        data = cls(find_named_run(run) if run else None, url, database)
        data._expected_run = run
        return data

    @property
    def is_open(self) -> bool:
        """Whether there is a client."""
        return self._opened is not None

    @property
    def is_on_files(self) -> bool:
        """Whether files are read, and no process that writes them."""
        return self._opened is not None and self._opened.files is not None

    def open(self) -> Client:
        """Return the client; raises `UserError`, `BusError` or `StoreUnreachableError` if there is none."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened.client

    def ask(self, work: Callable[[Client], T]) -> T:
        """Return the result of ``work``; look once more for a store that has ended meanwhile. Raises `UserError`."""
        was_open = self.is_open
        try:
            return self._ask(work)
        except StoreLostError:
            if not was_open:
                raise
        self.close()
        return self._ask(work)

    def check(self) -> None:
        """Close it and raise `UserError` where the client does not answer, or the latest run has changed.

        The latter only while the files of the latest run are read.
        """
        opened = self._opened
        try:
            if opened is not None:
                opened.check()
                self._check_latest(opened)
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        """Release client and files; the next question opens them again."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _ask(self, work: Callable[[Client], T]) -> T:
        try:
            return work(self.open())
        except ClickHouseError as error:
            raise (StoreLostError if is_unreachable(error) else UserError)(explain_error(error)) from error
        except (BusError, StoreUnreachableError) as error:
            raise UserError(str(error)) from error

    def _check_latest(self, opened: _Opened) -> None:
        latest = RunDirectory.latest()
        if self._run is not None or opened.files is None or latest is None:
            return
        if latest.store != opened.files.directory:
            raise FilesInUseError(f"run {latest.path.name} is the latest now")

    def _open(self) -> _Opened:
        own_store = _find_own_store(self._run) if self._run is not None else None
        place = self._url or own_store or _find_store(self._run)
        files = StoreFiles(place) if isinstance(place, Path) else None
        url = files.url if files is not None else str(place)
        try:
            client = connect_readonly(url, self._database, self._limits)
            self.damage = describe_damage(client, self._database)
            if self._expected_run and place != own_store:
                check_run(client, find_run_id(self._expected_run), f"here or in {_describe(place)}")
        except BaseException:
            if files is not None:
                files.close()
            raise
        return _Opened(client, url, files)


def _describe(place: str | Path) -> str:
    """Describe a store by its address, without a password, or by the run whose files it has."""
    return (
        f"the store of run {place.parent.name}" if isinstance(place, Path) else f"the store at {without_secrets(place)}"
    )


def _find_store(run: RunDirectory | None) -> str | Path:
    """Return the address of a store on the bus; without a run the latest run's comes first, and its files last.

    Raises `NoStoreError`.
    """
    latest = RunDirectory.latest() if run is None else None
    own_store = _find_own_store(latest) if latest is not None else None
    if isinstance(own_store, str):
        return own_store
    place = run_blocking(_find_store_on_bus()) or own_store
    if place is None and run is not None:
        raise NoStoreError(
            f"run {run.path.name!r} has no data in {run.store}, and no store is running: give --sql URL (in Python "
            "sql=URL)"
        )
    if place is None:
        raise NoStoreError(NO_STORE)
    return place


def _find_own_store(run: RunDirectory) -> str | Path | None:
    endpoints = run.read_endpoints()
    if endpoints is not None and endpoints.sql:
        return endpoints.sql
    return run.store if run.has_stored_data() else None


async def _find_store_on_bus() -> str | None:
    try:
        if not may_find_bus():
            return None
        async with connect(None, "query") as bus, bus.fleet("store") as stores:
            async with asyncio.timeout(LISTEN_SECONDS):
                while not stores.members():
                    await stores.wait_for_change()
            return stores.members()[0].address
    except CredentialsError:
        raise
    except (BusError, TimeoutError):
        return None
