"""SQL that creates the two users of a ClickHouse server: a limited reader and a writer. Pure.

The embedded engine has no users; `lightningbus.store.embedded.readonly_guard` limits its readers.
"""

import hashlib
from collections.abc import Iterator

from lightningbus.store.clickhouse.query_limits import INTERACTIVE

READER, WRITER = "lightningbus_reader", "lightningbus_writer"
READER_QUOTA = {"queries": 200_000, "execution_time": 7_200, "read_bytes": 50_000_000_000_000}
"""Hourly quota of the reader: queries, seconds and bytes. An open page sends up to ten thousand queries."""


def create_statements(database: str, cluster: str | None = None, *, reader: str = "", writer: str = "") -> list[str]:
    """List the statements that create the users of a database; a user without a password is left out.

    Idempotent: each user is replaced, with these rights and no others. The text holds digests of the passwords.
    """
    on_cluster = f" ON CLUSTER `{cluster}`" if cluster else ""
    statements = [*_reader_statements(database, on_cluster, reader)] if reader else []
    return statements + ([*_writer_statements(database, on_cluster, writer)] if writer else [])


def _reader_statements(database: str, on_cluster: str, password: str) -> Iterator[str]:
    # 2, not 1: clients such as Grafana's set limits of their own. 0 would be none, so the least is 1.
    limits = ", ".join(f"{name} = {value} MIN 1 MAX {value}" for name, value in INTERACTIVE.items())
    yield f"CREATE SETTINGS PROFILE OR REPLACE {READER}{on_cluster} SETTINGS readonly = 2 READONLY, {limits}"
    yield f"CREATE USER OR REPLACE {READER}{on_cluster} {_identified_clause(password)} SETTINGS PROFILE '{READER}'"
    quota = ", ".join(f"{name} = {value}" for name, value in READER_QUOTA.items())
    yield f"CREATE QUOTA OR REPLACE {READER}{on_cluster} KEYED BY user_name FOR INTERVAL 1 hour MAX {quota} TO {READER}"
    yield f"GRANT{on_cluster} SELECT ON `{database}`.* TO {READER}"


def _writer_statements(database: str, on_cluster: str, password: str) -> Iterator[str]:
    yield f"CREATE USER OR REPLACE {WRITER}{on_cluster} {_identified_clause(password)}"
    grants = "SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP VIEW"
    yield f"GRANT{on_cluster} {grants} ON `{database}`.* TO {WRITER}"
    if on_cluster:
        yield f"GRANT{on_cluster} CLUSTER ON *.* TO {WRITER}"


def _identified_clause(password: str) -> str:
    return f"IDENTIFIED WITH sha256_hash BY '{hashlib.sha256(password.encode()).hexdigest()}'"
