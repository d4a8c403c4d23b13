"""A batch of messages as the columns of ClickHouse's tables."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from bus.message import Delivery
from store.ingest import arrow
from store.ingest.rows import Row

Types = Mapping[str, Mapping[str, str]]
"""ClickHouse's type of every column, by table."""


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery with its rows."""

    delivery: Delivery
    rows: tuple[tuple[str, Row], ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """What is inserted for a batch, by table, under a token that is the same for the same messages."""

    tables: dict[str, pa.Table]
    token: str


def columns_of(batch: Sequence[Held], types: Types) -> Columns:
    """Blocks; raises ValueError, TypeError or OverflowError for a value that its column does not hold."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for held in batch:
        for table, row in held.rows:
            rows[table].append(row)
    tables = {table: arrow.table(found, types[table]) for table, found in rows.items()}
    return Columns(tables, deduplication_token(held.delivery for held in batch))


def types_of(client: Client, database: str) -> Types:
    """As the database has them now."""
    sql = (
        "SELECT table, name, type FROM system.columns WHERE database = {database:String} AND startsWith(table, 'raw_')"
    )
    found: dict[str, dict[str, str]] = defaultdict(dict)
    parameters: dict[str, Any] = {"database": database}
    for name, column, kind in client.query(sql, parameters=parameters).result_rows:
        found[name][column] = kind
    return dict(found)


def deduplication_token(deliveries: Iterable[Delivery]) -> str:
    """The same for the same set of messages, whatever their order: an insert repeated after a lost answer is one."""
    names = sorted(f"{delivery.stream}:{delivery.sequence}" for delivery in deliveries)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
