"""Queries to the store, a few at a time, with rows as JSON values."""

import asyncio
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from store.clickhouse.query_limits import explain_error

QueryRow = dict[str, Any]

MAX_CONCURRENT = 4
"""Concurrent queries, so that the store keeps up with its inserts."""


class QueryFailed(Exception):
    """A query failed; the message is one sentence to show."""


class Reader:
    """Sends queries to one `store.clickhouse.client.connect_readonly` client from the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def query(self, sql: str, **parameters: Any) -> list[QueryRow]:
        """All rows of a query, as JSON values; raises `QueryFailed`."""
        async with self._slots:
            try:
                return await asyncio.to_thread(self._query, sql, parameters)
            except ClickHouseError as error:
                raise QueryFailed(explain_error(error)) from error
            except OSError as error:
                raise QueryFailed(f"the store does not answer: {error}") from error

    def _query(self, sql: str, parameters: dict[str, Any]) -> list[QueryRow]:
        result = self._client.query(sql, parameters=parameters)
        return [{name: to_json_value(value) for name, value in row.items()} for row in result.named_results()]


def to_json_value(value: Any) -> Any:
    """A value for JSON: NaN and infinity become null, times are ISO 8601."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return value
