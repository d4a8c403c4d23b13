"""Users of a ClickHouse server: one who reads within limits, one who writes. Statements an administrator runs. Pure.

The embedded engine has no users; `store.embedded.readonly_guard` stands there in their place.
"""

import hashlib
from collections.abc import Iterator

from store.clickhouse.query_limits import PEOPLE

READER, WRITER = "lightningbus_reader", "lightningbus_writer"
QUOTA = {"queries": 200_000, "execution_time": 7_200, "read_bytes": 50_000_000_000_000}
"""Of the reader in an hour: questions, seconds and bytes. A page that is open asks up to ten thousand times."""


def statements(database: str, cluster: str | None = None, *, reader: str = "", writer: str = "") -> list[str]:
    """What makes the users of a database, by their passwords; one without a password is not made.

    Safe to repeat: each user is made anew, with these rights and no others. The text holds digests of the passwords.
    """
    on = f" ON CLUSTER `{cluster}`" if cluster else ""
    made = [*_reader(database, on, reader)] if reader else []
    return made + ([*_writer(database, on, writer)] if writer else [])


def _reader(database: str, on: str, password: str) -> Iterator[str]:
    # 2, not 1: clients such as Grafana's set limits of their own. 0 would be none, so the least is 1.
    limits = ", ".join(f"{name} = {value} MIN 1 MAX {value}" for name, value in PEOPLE.items())
    yield f"CREATE SETTINGS PROFILE OR REPLACE {READER}{on} SETTINGS readonly = 2 READONLY, {limits}"
    yield f"CREATE USER OR REPLACE {READER}{on} {_identified(password)} SETTINGS PROFILE '{READER}'"
    most = ", ".join(f"{name} = {value}" for name, value in QUOTA.items())
    yield f"CREATE QUOTA OR REPLACE {READER}{on} KEYED BY user_name FOR INTERVAL 1 hour MAX {most} TO {READER}"
    yield f"GRANT{on} SELECT ON `{database}`.* TO {READER}"


def _writer(database: str, on: str, password: str) -> Iterator[str]:
    yield f"CREATE USER OR REPLACE {WRITER}{on} {_identified(password)}"
    rights = "SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP VIEW"
    yield f"GRANT{on} {rights} ON `{database}`.* TO {WRITER}"
    if on:
        yield f"GRANT{on} CLUSTER ON *.* TO {WRITER}"


def _identified(password: str) -> str:
    return f"IDENTIFIED WITH sha256_hash BY '{hashlib.sha256(password.encode()).hexdigest()}'"
