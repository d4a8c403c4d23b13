"""The bus of a run: while it is up, then a server on its files; or the bus that is up, or one by its address."""

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import STORE_GIB, nats_server
from lightningbus.bus.errors import BusError
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.secrets import CONF
from lightningbus.bus.streams.specs import BUCKET
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import BUS_VARIABLE, connect
from lightningbus.run.run_directory.lookup import find_run
from lightningbus.schemas import subjects

WEIGHT_STREAMS = (subjects.WEIGHTS, BUCKET)
"""Streams that hold weight versions and their files."""


class RunBus(NamedTuple):
    """A bus, and the directory of its run; None if only an address is known."""

    bus: Bus
    directory: RunDirectory | None


@asynccontextmanager
async def open_bus(
    url: str | None, run: str | None, name: str, role: str = "client", streams: Sequence[str] = ()
) -> AsyncIterator[Bus]:
    """Open the bus of ``run``, else the one that `connect` finds; the arguments are those of `open_run_bus`.

    Raises `UserError` where none answers and the latest run has ended with its bus: it can be read by its name.
    """
    async with AsyncExitStack() as exits:
        if run is not None:
            yield (await exits.enter_async_context(open_run_bus(url, run, name, role, streams))).bus
            return
        try:
            bus = await exits.enter_async_context(connect(url, name, role))
        except BusError as error:
            if (ended := find_ended_run(url)) is None:
                raise
            name = ended.path.name
            raise UserError(f"{error}; run {name!r} has ended: --run {name} reads its files") from error
        yield bus


@asynccontextmanager
async def open_run_bus(
    url: str | None, run: str | None, name: str, role: str = "client", streams: Sequence[str] = ()
) -> AsyncIterator[RunBus]:
    """Open the bus at ``url``, or that of a run: its name, its directory, or None for the latest one.

    If the run has stopped, a server serves the run's files while the block runs, and no other process can use them
    then. ``name`` and ``role`` are those of the connection; ``streams`` are needed of the files.
    Raises `UserError` if there is no such run, `BusError` if its bus cannot be read.
    """
    directory = find_run(run) if url is None or run is not None else None
    if directory is not None:
        directory = RunDirectory(directory.path.resolve())
    elif url is None:
        raise UserError("there is no run here: give --run DIRECTORY or --bus URL")
    async with AsyncExitStack() as exits:
        if directory is None or url is not None:
            bus = await exits.enter_async_context(connect(url, name, role))
        else:
            address, keys = await exits.enter_async_context(_served(directory, streams))
            credentials = Credentials.read(keys, role) if keys is not None else None
            bus = await exits.enter_async_context(Bus.connect(address, name, credentials=credentials))
        yield RunBus(bus, directory)


@asynccontextmanager
async def _served(run: RunDirectory, streams: Sequence[str]) -> AsyncIterator[tuple[str, Path | None]]:
    """Serve a run's bus, unless it is up; yields its address, and the directory of its users' keys.

    Raises `UserError` where keys or one of ``streams`` have been deleted.
    """
    endpoints = run.read_endpoints()
    if endpoints is not None:
        yield endpoints.bus, Path(endpoints.credentials) if endpoints.credentials else None
        return
    if not run.has_own_bus():
        raise UserError(f"run {run.path.name!r} has no bus of its own: give --bus URL")
    keys = run.credentials if run.credentials.is_dir() else None
    config = run.path / "bus" / "nats.conf"
    if keys is None and _names_users(config):
        raise UserError(f"the keys of run {run.path.name!r} are gone ({run.credentials}): nothing else opens its bus")
    for stream in streams:
        if not any((run.path / "bus" / "jetstream").rglob(f"streams/{stream}")):
            raise UserError(
                f"the bus of run {run.path.name!r} has lost its stream {stream}: {run.path / 'bus'} is not whole"
            )
    users = run.credentials.resolve() if (run.credentials / CONF).exists() else None
    more_mib = _read_more_mib(config)
    async with nats_server(run.path / "bus", users=users, more_mib=more_mib) as server:
        yield server.url, keys


def _names_users(config: Path) -> bool:
    """Return whether the run's server knew users, by its configuration."""
    try:
        return CONF in config.read_text()
    except OSError:
        return False


def _read_more_mib(config: Path) -> int:
    """Return the room for enlarged streams that the run's server had: with less it would not open them."""
    try:
        limit = re.search(r"max_file_store: (\d+)GB", config.read_text())
    except OSError:
        limit = None
    return max(0, int(limit.group(1)) - STORE_GIB) * 1024 if limit is not None else 0


def find_ended_run(url: str | None) -> RunDirectory | None:
    """Find the latest run, if it has ended and its bus can be read; None: an address was given, or there is none."""
    latest = RunDirectory.latest() if url is None and BUS_VARIABLE not in os.environ else None
    if latest is None or not latest.has_own_bus() or latest.read_endpoints() is not None:
        return None
    return latest
