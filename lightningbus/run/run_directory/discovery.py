"""Finds the bus, and a role's keys for it and for the nodes' gateways."""

import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.addresses import DEFAULT_URL, server_addresses
from lightningbus.bus.security.secrets import INFERENCE_API_KEY
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.run_times import find_started_at

if TYPE_CHECKING:
    from lightningbus.bus.client import Bus
    from lightningbus.bus.security.credentials import Credentials

log = logging.getLogger(__name__)

BUS_VARIABLE = "LIGHTNINGBUS_BUS"
CREDENTIALS_VARIABLE = "LIGHTNINGBUS_CREDENTIALS"
API_KEY_VARIABLE = "LIGHTNINGBUS_INFERENCE_API_KEY_FILE"
ANSWER_SECONDS = 1.0
"""Longest wait for a connection of a command, in seconds: a query does not wait for a bus that is about to start."""


@dataclass(frozen=True, slots=True)
class BusEndpoint:
    """A bus as one role reaches it; ``inference_api_key`` is a file."""

    url: str
    credentials: "Credentials | None" = None
    inference_api_key: Path | None = None


def discover_bus(url: str | None, role: str, run: RunDirectory | None = None, model: str | None = None) -> BusEndpoint:
    """Find the bus of a role: ``url``, else the environment's, else that of ``run`` or of a run that is up here.

    Of several runs that are up the latest comes first. Credentials and the inference API key come from the environment,
    else from the same run. ``model`` is the one that a learner trains, which may have a user of its own. Raises
    `BusError` for unusable credentials, or when the latest run's endpoints are corrupt and nothing else names the bus.
    """
    url = url or os.environ.get(BUS_VARIABLE)
    run = run or find_run_that_is_up()
    try:
        endpoints = run.read_endpoints() if run is not None else None
    except BusError as error:
        if url is None:
            raise
        log.warning("%s", error)
        endpoints = None
    if endpoints is None or url not in (None, endpoints.bus):  # another bus than the run's
        return BusEndpoint(url or DEFAULT_URL, find_credentials(role, model=model), find_api_key(role))
    directory = Path(endpoints.credentials) if endpoints.credentials else None
    key = Path(endpoints.inference_api_key) if endpoints.inference_api_key else None
    credentials = find_credentials(role, directory, model)
    return BusEndpoint(endpoints.bus, credentials, find_api_key(role, directory) or key)


def find_run_that_is_up() -> RunDirectory | None:
    """Find the run here that is up: the latest first, else the one whose servers started last; else the latest."""
    latest = RunDirectory.latest()
    if latest is None or latest.is_up():
        return latest
    others = (RunDirectory(path.parent) for path in RUNS.glob("*/endpoints.json"))
    return max((run for run in others if run.is_up()), key=lambda run: find_started_at(run.path), default=latest)


def find_credentials_directory() -> Path | None:
    """Return the directory that `--credentials` or the environment names."""
    directory = os.environ.get(CREDENTIALS_VARIABLE)
    return Path(directory) if directory else None


def find_credentials(role: str, default: Path | None = None, model: str | None = None) -> "Credentials | None":
    """Read a role's credentials, or those of a model's learner; raises `BusError` when the directory has none."""
    directory = find_credentials_directory() or default
    if directory is None:
        return None
    from lightningbus.bus.security.credentials import Credentials

    return Credentials.read(directory, role) if model is None else Credentials.read_learner(directory, model)


def find_api_key(role: str, directory: Path | None = None) -> Path | None:
    """Find the file with the inference API key: the environment's, else the one beside a role's credentials."""
    if path := os.environ.get(API_KEY_VARIABLE):
        return Path(path)
    directory = directory or find_credentials_directory()
    if directory is None:
        return None
    files = (directory / INFERENCE_API_KEY, directory / role / INFERENCE_API_KEY)
    return next((file for file in files if file.exists()), None)


def may_find_bus() -> bool:
    """Return whether `connect` may find a bus: one is named, or something listens at the default address."""
    run = find_run_that_is_up()
    if BUS_VARIABLE in os.environ or (run is not None and run.read_endpoints() is not None):
        return True
    parts = urlsplit(server_addresses(DEFAULT_URL)[0])
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


@asynccontextmanager
async def connect(
    url: str | None,
    name: str,
    role: str = "client",
    wait: float = ANSWER_SECONDS,
    run: RunDirectory | None = None,
) -> "AsyncIterator[Bus]":
    """Connect to the bus that `discover_bus` finds; raises as `Bus.connect`."""
    from lightningbus.bus.client import Bus

    endpoint = discover_bus(url, role, run)
    async with Bus.connect(endpoint.url, name, wait, endpoint.credentials) as bus:
        yield bus
