"""The bus that a command reads: by address, of a run that is up, or from the files of a run that has ended."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import typer

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import BUS_VARIABLE, connect

RunBusOption = Annotated[
    str | None, typer.Option("--run", help="name or directory of a run, up or ended [default: the bus that is up]")
]


@asynccontextmanager
async def open_bus(url: str | None, run: str | None, name: str) -> AsyncIterator[Bus]:
    """The bus of ``run``, else the one that `connect` finds.

    Raises `UserError` where none answers and the latest run has ended with its bus: it can be read by its name.
    """
    if run is not None:
        from lightningbus.export.run_source import open_run  # takes long to import

        async with open_run(run, url, name, "client") as source:
            yield source.bus
        return
    async with AsyncExitStack() as exits:
        try:
            bus = await exits.enter_async_context(connect(url, name))
        except BusError as error:
            if (ended := _find_ended_run(url)) is None:
                raise
            raise UserError(f"{error}; run {ended!r} has ended: --run {ended} reads its files") from error
        yield bus


def _find_ended_run(url: str | None) -> str | None:
    """The latest run here if it has ended and its bus can be read; None: an address was given, or there is none."""
    latest = RunDirectory.latest() if url is None and BUS_VARIABLE not in os.environ else None
    if latest is None or not latest.has_own_bus() or latest.read_endpoints() is not None:
        return None
    return latest.path.name
