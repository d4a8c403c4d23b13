"""Results of SQL as tables and DataFrames; without a row they have the types of full ones."""

import re
from contextlib import suppress
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.api.sessions.table import Table
from lightningbus.store.clickhouse.client import describe_columns, query_table
from lightningbus.store.clickhouse.quoting import quote_text

NULLABLE = re.compile(r"Nullable\(((?:[^()]|\([^()]*\))*)\)")


def load_table(client: Client, sql: str, parameters: dict[str, Any] | None = None, title: str = "") -> Table:
    """Return the rows of a result, without one its columns and their kinds. Raises ClickHouseError."""
    columns, rows = query_table(client, sql, parameters)
    if rows or not columns:
        return Table(tuple(columns), tuple(rows), title)
    types = [NULLABLE.sub(r"\1", kind) for _, kind in describe_columns(client, sql, parameters)]
    sample: tuple[Any, ...] = ()
    with suppress(ClickHouseError):  # a type without a default value
        sample = tuple(client.query(_select_defaults(types)).result_rows[0])
    return Table(tuple(columns), (), title, sample)


def load_frame(client: Client, sql: str, parameters: dict[str, Any] | None = None) -> Any:
    """Return a result as a ``pandas.DataFrame`` of ClickHouse's types. Raises ClickHouseError."""
    frame = client.query_df(sql, parameters=parameters or None)
    if len(frame.columns):
        return frame
    columns = describe_columns(client, sql, parameters)  # no row, so no columns there
    if not columns:
        return frame
    sample = client.query_df(_select_defaults([kind for _, kind in columns]))
    return sample.iloc[:0].set_axis([name for name, _ in columns], axis="columns")


def _select_defaults(types: list[str]) -> str:
    """Return the SQL of one row with the default value of each type. Pure."""
    values = (f"defaultValueOfTypeName({quote_text(kind)}) AS c{number}" for number, kind in enumerate(types))
    return f"SELECT {', '.join(values)}"
