"""A batch of messages as Arrow tables, one for each ClickHouse table."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from lightningbus.bus.jetstream.message import Message
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.rows.row import Row

ColumnTypes = Mapping[str, Mapping[str, str]]
"""ClickHouse's type of every column, by table."""


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message with its rows, or with some of them."""

    message: Message
    rows: tuple[tuple[str, Row], ...]
    selected: tuple[int, ...] | None = None
    """Positions of the rows among all of the message; None: all of them."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the rows among all of the message."""
        return tuple(range(len(self.rows))) if self.selected is None else self.selected

    def select(self, positions: Collection[int]) -> "DecodedMessage":
        """Reduce the message to some of its rows."""
        chosen = set(positions)
        kept = [(place, row) for place, row in zip(self.positions, self.rows, strict=True) if place in chosen]
        return DecodedMessage(self.message, tuple(row for _, row in kept), tuple(place for place, _ in kept))

    def without(self, tables: Collection[str]) -> "DecodedMessage":
        """Drop the message's rows of some tables."""
        if not tables:
            return self
        rows = zip(self.positions, self.rows, strict=True)
        return self.select([place for place, (table, _) in rows if table not in tables])


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """The rows of a batch by table, also as Arrow tables, and a token that is the same for the same rows."""

    rows: Mapping[str, Sequence[Row]]
    tables: dict[str, pa.Table]
    token: str


def build_insert_batch(batch: Sequence[DecodedMessage], types: ColumnTypes) -> InsertBatch:
    """Build the columns; blocks. Raise ValueError, TypeError or OverflowError for an impossible value."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for decoded in batch:
        for table, row in decoded.rows:
            rows[table].append(row)
    tables = {table: arrow.rows_to_arrow(table_rows, types[table]) for table, table_rows in rows.items()}
    token = deduplication_token(decoded.message for decoded in batch)
    if parts := [f"{part.message.stream}:{part.message.sequence}:{part.selected}" for part in batch if part.selected]:
        token = hashlib.sha256("\n".join([token, *sorted(parts)]).encode()).hexdigest()
    return InsertBatch(rows, tables, token)


def load_column_types(client: Client, database: str) -> ColumnTypes:
    """Load the present column types of the database."""
    sql = (
        "SELECT table, name, type FROM system.columns WHERE database = {database:String} AND startsWith(table, 'raw_')"
        " AND default_kind != 'MATERIALIZED'"
    )
    types: dict[str, dict[str, str]] = defaultdict(dict)
    parameters: dict[str, Any] = {"database": database}
    for name, column, kind in client.query(sql, parameters=parameters).result_rows:
        types[name][column] = kind
    return dict(types)


def deduplication_token(messages: Iterable[Message]) -> str:
    """Hash a set of messages in any order: ClickHouse drops an insert repeated after a lost reply."""
    message_ids = sorted(f"{message.stream}:{message.sequence}" for message in messages)
    return hashlib.sha256("\n".join(message_ids).encode()).hexdigest()
