"""The bus of a run, up or stopped, and what the run was started with."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import STORE_GIB, nats_server
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.secrets import CONF
from lightningbus.run.errors import UserError
from lightningbus.run.processes.stack import CREDENTIALS
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect
from lightningbus.run.run_directory.lookup import find_run

ROLE = "inference"
"""The role that may read weight versions, and may do little else."""
NAME = "weights export"


@dataclass(frozen=True, slots=True)
class RunSource:
    """A bus that holds weight versions; ``directory`` is the run's, None if only an address is known."""

    bus: Bus
    directory: Path | None

    def read_settings(self, role: str) -> dict[str, Any]:
        """See `RunDirectory.read_settings`; empty where the run's directory is not known."""
        return RunDirectory(self.directory).read_settings(role) if self.directory is not None else {}

    def read_learners(self) -> dict[str, dict[str, Any]]:
        """See `RunDirectory.read_learners`; empty where the run's directory is not known."""
        return RunDirectory(self.directory).read_learners() if self.directory is not None else {}


@asynccontextmanager
async def open_run(run: str | None, url: str | None, name: str = NAME, role: str = ROLE) -> AsyncIterator[RunSource]:
    """Open the bus at ``url``, or that of a run: its name, its directory, or None for the latest one.

    If the run has stopped, a server serves the run's files while the block runs, and no other process can use them
    then. ``name`` and ``role`` are those of the connection.
    Raises `UserError` if there is no such run, `BusError` if its bus cannot be read.
    """
    if url is not None:
        async with connect(url, name, role) as bus:
            yield RunSource(bus, _find_run(run).path.resolve() if run is not None else None)
        return
    directory = _find_run(run)
    endpoints = directory.read_endpoints()
    if endpoints is not None:
        credentials = _read_credentials(Path(endpoints.credentials) if endpoints.credentials else None, role)
        async with Bus.connect(endpoints.bus, name, credentials=credentials) as bus:
            yield RunSource(bus, directory.path.resolve())
        return
    if not directory.has_own_bus():
        raise UserError(f"run {directory.path.name!r} has no bus of its own: give --bus URL")
    access = directory.path / CREDENTIALS
    users = access.resolve() if (access / CONF).exists() else None
    more_mib = _read_more_mib(directory.path / "bus" / "nats.conf")
    async with nats_server(directory.path / "bus", users=users, more_mib=more_mib) as server:
        credentials = _read_credentials(access if access.is_dir() else None, role)
        async with Bus.connect(server.url, name, credentials=credentials) as bus:
            yield RunSource(bus, directory.path.resolve())


def _find_run(run: str | None) -> RunDirectory:
    directory = find_run(run)
    if directory is None:
        raise UserError("there is no run here: give --run DIRECTORY or --bus URL")
    return directory


def _read_credentials(directory: Path | None, role: str) -> Credentials | None:
    return Credentials.read(directory, role) if directory is not None else None


def _read_more_mib(config: Path) -> int:
    """Read the room for enlarged streams of the run's server: with less it would not open them."""
    try:
        limit = re.search(r"max_file_store: (\d+)GB", config.read_text())
    except OSError:
        limit = None
    return max(0, int(limit.group(1)) - STORE_GIB) * 1024 if limit is not None else 0
