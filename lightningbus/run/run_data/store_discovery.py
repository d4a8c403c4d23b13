"""Where SQL is answered, when nobody says so."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clickhouse_connect.driver.client import Client

from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.run_names import check_run
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect
from lightningbus.run.run_directory.lookup import find_named_run, find_run_id
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import INTERACTIVE, QueryLimits
from lightningbus.store.embedded.engine import EngineBusyError
from lightningbus.store.service import serve_readonly

SQL_VARIABLE = "LIGHTNINGBUS_SQL"
NO_STORE = "no store is running and there is no run here: start `lightningbus store`, or give --sql URL"
NO_RUN_YET = (
    "there is no run here yet: `lightningbus train -c run.yaml` starts one, `lightningbus init first` writes a project "
    "for it, and `lightningbus demo` needs neither"
)
LISTEN_SECONDS = 2.5
"""A store says where it is once a second."""


@asynccontextmanager
async def sql_client(
    url: str | None, database: str, limits: QueryLimits = INTERACTIVE, run: str = ""
) -> AsyncIterator[Client]:
    """A reader of the store of a run: while it is up, or of its files, which are opened here.

    ``run``: its name or directory. Without it: a store that runs, else the latest run's files. So it is with a run that
    has no store of its own here; raises `UserError` where that store knows no such run.
    """
    named = find_named_run(run) if run else None
    running = _find_running(named) if named is not None else None
    url = url or os.environ.get(SQL_VARIABLE) or running
    directory = named if url is None and named is not None and named.has_stored_data() else None
    is_checked = bool(run) and directory is None and (url is None or url != running)
    if url is None and directory is None:
        url = await find_running_store()

    async def open_client(address: str) -> Client:
        client = await asyncio.to_thread(connect_readonly, address, database, limits)
        if is_checked:
            await asyncio.to_thread(check_run, client, find_run_id(run))
        return client

    if url is not None:
        yield await open_client(url)
        return
    directory = directory or RunDirectory.latest()
    if directory is None or not directory.has_stored_data():
        raise UserError(NO_STORE)
    try:
        async with serve_readonly(directory.store) as address:
            yield await open_client(address)
    except EngineBusyError as error:
        raise UserError(f"{error}; give the store's address with --sql") from error


async def find_running_store() -> str | None:
    """The address of the latest run's store, else of one on the bus; None: there is none."""
    run = RunDirectory.latest()
    if run is not None and (url := _find_running(run)) is not None:
        return url
    try:
        async with connect(None, "query") as bus, bus.fleet("store") as stores:
            async with asyncio.timeout(LISTEN_SECONDS):
                while not stores.members():
                    await stores.wait_for_change()
            return stores.members()[0].address
    except CredentialsError:
        raise
    except (BusError, TimeoutError):
        return None


def _find_running(run: RunDirectory) -> str | None:
    endpoints = run.read_endpoints()
    return endpoints.sql or None if endpoints is not None else None
