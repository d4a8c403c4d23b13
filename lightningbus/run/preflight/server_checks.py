"""Whether the servers that a run file names are there: its bus and its ClickHouse."""

import asyncio
from collections.abc import Iterator

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import find_server
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream import addresses
from lightningbus.bus.security.credentials import Credentials
from lightningbus.common.flat_settings import without_secrets
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.discovery import find_credentials_directory
from lightningbus.run.settings.run_file import BusSettings, RunSettings

ANSWER_SECONDS = 3.0
"""Longest wait for a server, in seconds."""


def check_servers(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each server that a run uses and does not start: its version, or a warning."""
    if settings.bus.url is not None:
        yield asyncio.run(_check_bus(settings.bus, settings.bus.url))
    if settings.store is not None and settings.store.url is not None:
        yield _check_clickhouse(settings.store.url)


def check_bus_program(settings: RunSettings) -> None:
    """Raise `UserError` if this machine lacks the program of the embedded bus that the run would start."""
    if settings.bus.url is None:
        try:
            find_server()
        except BusError as error:
            raise UserError(str(error)) from error


async def _check_bus(settings: BusSettings, url: str) -> str:
    try:
        directory = settings.credentials or find_credentials_directory()
        credentials = Credentials.read(directory, "admin") if directory is not None else None
        async with Bus.connect(url, "dry-run", ANSWER_SECONDS, credentials) as bus:
            version = bus.nc.connected_server_version
            number = f"{version.major}.{version.minor}.{version.patch}"
            return f"bus.url: NATS {number} answers at {addresses.without_secrets(url)}"
    except BusError as error:
        return f"warning: bus.url: {error}"


def _check_clickhouse(url: str) -> str:
    from lightningbus.store.clickhouse.client import StoreUnreachableError, connect

    try:
        client = connect(url, None, int(ANSWER_SECONDS))
    except StoreUnreachableError as error:
        return f"warning: store.url: {error}"
    try:
        return f"store.url: ClickHouse {client.server_version} answers at {without_secrets(url)}"
    finally:
        client.close()
