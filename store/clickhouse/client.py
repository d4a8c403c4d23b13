"""A clickhouse-connect client, the same for the embedded engine and for a server."""

import logging
import os
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from lightningbus.common.flat_settings import without_secrets
from lightningbus.common.loopback_proxies import HOSTS, bypass_loopback
from lightningbus.schemas.text import shorten_line
from lightningbus.store.clickhouse.query_limits import INTERACTIVE, QueryLimits, explain_error, settings_for

logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())  # what it raises says the same
DATABASE = "lightningbus"
TIMEOUT_SECONDS = 300
SCHEMES = ("http", "https")
TLS_PORTS = (443, 8443)
"""Ports at which clickhouse-connect, given no scheme, asks by TLS."""


class StoreUnreachableError(Exception):
    """ClickHouse cannot be used at this address."""


class StoreUnavailableError(StoreUnreachableError):
    """Nothing answers at this address: ClickHouse may be back later."""


def connect(url: str, database: str | None = DATABASE, timeout_seconds: int = TIMEOUT_SECONDS) -> Client:
    """Connect to one database (None: the server's default); raise `StoreUnreachableError`.

    A query raises OperationalError where no byte of an answer arrives for ``timeout_seconds``. Without a session, so
    several threads may share it; without compression on the same machine. The scheme alone decides whether the
    connection is encrypted: clickhouse-connect itself goes by the port.
    """
    address = _parse_address(url)
    host = address.hostname or ""
    if local := host in HOSTS or host.startswith("127."):  # Clickhouse-connect would ask a proxy of the environment.
        os.environ.update(bypass_loopback(os.environ, host))
    try:
        return clickhouse_connect.get_client(
            dsn=url,
            interface=address.scheme,
            database=database or "__default__",
            autogenerate_session_id=False,
            connect_timeout=5,
            send_receive_timeout=timeout_seconds,
            compress=not local,
        )
    except TypeError as error:  # of a field of the query that is no argument of the client
        raise StoreUnreachableError(f"the query of {without_secrets(url)} is not to be used: {error}") from None
    except (OperationalError, OSError) as error:
        raise StoreUnavailableError(f"no ClickHouse answers at {without_secrets(url)}: {_root_cause(error)}") from error
    except ClickHouseError as error:
        raise StoreUnreachableError(
            f"ClickHouse at {without_secrets(url)} does not answer as it should: {explain_error(error)}"
        ) from error


def _parse_address(url: str) -> SplitResult:
    """Take an address apart; raise `StoreUnreachableError`, which repeats nothing of what may hold a password."""
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError:
        address, port = urlsplit(""), None
    if address.scheme not in SCHEMES or not address.hostname:
        raise StoreUnreachableError(
            "this is no address of ClickHouse's HTTP interface: it has the form https://user:password@host:port"
        )
    if address.scheme == "http" and port in TLS_PORTS:
        raise StoreUnreachableError(
            f"{without_secrets(url)} would be asked without TLS at the port of TLS: write https://, or another port"
        )
    return address


def connect_readonly(url: str, database: str | None = DATABASE, limits: QueryLimits = INTERACTIVE) -> Client:
    """Connect as `connect`, but with every query read-only and limited; raise `StoreUnreachableError`."""
    client = connect(url, database)
    readonly = client.server_settings["readonly"].value
    for name, value in settings_for(readonly, limits).items():
        client.set_client_setting(name, value)
    return client


def _root_cause(error: BaseException) -> str:
    """Find the operating system's reason for a failed connection, else the first line of the client's error."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return shorten_line(next(iter(str(error).strip().splitlines()), type(error).__name__), 200)


def query_table(
    client: Client, sql: str, parameters: dict[str, Any] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a result's columns, of one without rows too, and its rows."""
    result = client.query(sql, parameters=parameters or None)
    names = list(result.column_names) or [name for name, _ in describe_columns(client, sql, parameters)]
    return names, [tuple(row) for row in result.result_rows]


def describe_columns(client: Client, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return the names and ClickHouse's types of a result's columns; of what is no SELECT, none."""
    with suppress(ClickHouseError):
        described = client.query(f"DESCRIBE TABLE (\n{sql.rstrip().rstrip(';')}\n)", parameters=parameters or None)
        return [(row[0], row[1]) for row in described.result_rows]
    return []


def query_row(client: Client, sql: str, parameters: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Return the first row of a result; raise LookupError if there is none."""
    row = client.query(sql, parameters=parameters).first_row
    if row is None:
        raise LookupError(f"no row: {sql}")
    return tuple(row)
