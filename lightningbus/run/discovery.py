"""Where the bus is, who we are there, and what the nodes' gateways ask for, when nobody says so."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bus.client import Bus
from bus.connection import CONNECT_SECONDS, DEFAULT_URL
from bus.errors import BusError
from bus.security.credentials import Credentials
from bus.security.secrets import CLUSTER_KEY
from lightningbus.run.run_directory import RunDirectory

log = logging.getLogger(__name__)

BUS_VARIABLE = "LIGHTNINGBUS_BUS"
ACCESS_VARIABLE = "LIGHTNINGBUS_ACCESS"
KEY_VARIABLE = "LIGHTNINGBUS_CLUSTER_KEY_FILE"


@dataclass(frozen=True, slots=True)
class Place:
    """A bus as one role reaches it; ``cluster_key`` is a file."""

    url: str
    access: Credentials | None = None
    cluster_key: Path | None = None


def place(given: str | None, role: str) -> Place:
    """Where a role finds the bus: as given, else as the environment says, else the latest run's if it is up here.

    Its access and the cluster key come from the environment, else from the same run. Raises `BusError` when the access
    is none, or when nobody says where the bus is and the latest run's endpoints are corrupt.
    """
    url = given or os.environ.get(BUS_VARIABLE)
    run = RunDirectory.latest()
    try:
        endpoints = run.endpoints() if run is not None else None
    except BusError as error:
        if url is None:
            raise
        log.warning("%s", error)
        endpoints = None
    if endpoints is None or url not in (None, endpoints.bus):  # another bus than the run's
        return Place(url or DEFAULT_URL, access_of(role), cluster_key_of(role))
    said = Path(endpoints.access) if endpoints.access else None
    key = Path(endpoints.cluster_key) if endpoints.cluster_key else None
    return Place(endpoints.bus, access_of(role, said), cluster_key_of(role, said) or key)


def access_directory() -> Path | None:
    """What `--access` or the environment gives."""
    said = os.environ.get(ACCESS_VARIABLE)
    return Path(said) if said else None


def access_of(role: str, otherwise: Path | None = None) -> Credentials | None:
    """A role's access; raises `BusError` when the directory given has none."""
    directory = access_directory() or otherwise
    return Credentials.read(directory, role) if directory is not None else None


def cluster_key_of(role: str, directory: Path | None = None) -> Path | None:
    """The file with the cluster key that the environment names, or that lies with a role's access."""
    if said := os.environ.get(KEY_VARIABLE):
        return Path(said)
    directory = directory or access_directory()
    if directory is None:
        return None
    return next((file for at in (directory, directory / role) if (file := at / CLUSTER_KEY).exists()), None)


@asynccontextmanager
async def connected(
    given: str | None, name: str, role: str = "client", wait: float = CONNECT_SECONDS
) -> AsyncIterator[Bus]:
    """A connection to wherever the bus is; raises as `Bus.connect`."""
    at = place(given, role)
    async with Bus.connect(at.url, name, wait, at.access) as bus:
        yield bus
