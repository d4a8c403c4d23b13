"""The bus and the store of a run, both writable: those that are up, else processes on the files of a run that ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.common.aio import run_unless
from lightningbus.run.errors import UserError
from lightningbus.run.processes.members import find_member, is_store, wait_for_store
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.run_data.run_bus import open_run_bus
from lightningbus.run.run_directory import discovery
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.settings import StoreSettings

LISTEN_SECONDS = 2.5
"""A store says once a second where it is."""


class OpenStore(NamedTuple):
    """A bus, a client on its store, and the id of the run."""

    bus: Bus
    client: Client
    run_id: str


@asynccontextmanager
async def open_store(url: str | None, run: str | None, database: str, name: str) -> AsyncIterator[OpenStore]:
    """Open a run's bus as admin, and its store; both are started for a run that has ended.

    Raises `UserError` or `BusError` if there is no such run, or its store does not start.
    """
    async with AsyncExitStack() as exits:
        if url is None:
            bus, directory = await exits.enter_async_context(open_run_bus(None, run, name, "admin"))
        elif run is None:
            raise UserError("--run: name the run whose rollouts are meant: the bus may have several")
        else:
            bus, directory = await exits.enter_async_context(discovery.connect(url, name, "admin")), None
        stores = await exits.enter_async_context(bus.fleet("store"))
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                beat = await find_member(stores, is_store)
        except TimeoutError:
            if directory is None or directory.read_endpoints() is not None or not directory.has_stored_data():
                raise UserError("no store is running on that bus: start `lightningbus store`") from None
            assert bus.nc.connected_url is not None, "it is connected"
            supervisor = start_supervisor(directory, str(bus.nc.connected_url.geturl()))
            exits.push_async_callback(supervisor.stop_all)
            settings = StoreSettings(data_dir=directory.store, http_port=0, database=database)
            await supervisor.start(ChildSpec("store", "store", settings))
            starting = wait_for_store(stores, supervisor, directory.log("store"))
            beat = await run_unless(supervisor.wait_for_failure(), starting)
        client = await asyncio.to_thread(connect, beat.address, database)
        exits.callback(client.close)
        yield OpenStore(bus, client, directory.run_id if directory is not None else run or "")


def start_supervisor(directory: RunDirectory, url: str) -> Supervisor:
    """Make the supervisor of processes on a run's files."""
    (directory.path / "work").mkdir(exist_ok=True)
    keys = directory.credentials
    environment = {discovery.CREDENTIALS_VARIABLE: str(keys.resolve())} if keys.is_dir() else {}
    return Supervisor(directory, url, environment)
