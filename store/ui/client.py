"""Queries to the store, a few at a time, with rows as JSON values."""

import asyncio
import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from store.clickhouse.query_limits import explain_error, is_unreachable

QueryRow = dict[str, Any]

NO_STORE = "The store does not answer. This page goes on by itself as soon as a store or the run's files can be read."
MAX_CONCURRENT = 4
"""Concurrent queries, so that the store keeps up with its inserts."""


class QueryFailed(Exception):
    """A query failed; the message is one sentence to show."""


class StoreGone(QueryFailed):
    """No store answers; the message says what to do."""


class StoreState(StrEnum):
    """What a page reads: a running store, the files of a run that has ended, or nothing."""

    LIVE = "live"
    FINISHED = "finished"
    GONE = "gone"


class Reader:
    """Sends queries to a `store.clickhouse.client.connect_readonly` client from the event loop.

    The client may change while pages are open: `use` another one, or `lose` it.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client, self._problem = client, NO_STORE
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self.state = StoreState.LIVE if client is not None else StoreState.GONE

    def use(self, client: Client, state: StoreState) -> None:
        """Send queries to this client from now on."""
        self._client, self.state = client, state

    def lose(self, problem: str) -> None:
        """Send no more queries; each fails with ``problem``, a sentence that says what to do."""
        self._client, self.state, self._problem = None, StoreState.GONE, problem

    async def query(self, sql: str, **parameters: Any) -> list[QueryRow]:
        """All rows of a query, as JSON values; raises `QueryFailed` or `StoreGone`."""
        async with self._slots:
            client = self._client
            if client is None:
                raise StoreGone(self._problem)
            try:
                return await asyncio.to_thread(_query, client, sql, parameters)
            except ClickHouseError as error:
                if is_unreachable(error):
                    raise StoreGone(NO_STORE) from error
                raise QueryFailed(explain_error(error)) from error
            except OSError as error:
                raise StoreGone(NO_STORE) from error

    async def query_all(self, values: Mapping[str, Any], *statements: str) -> list[list[QueryRow]]:
        """All rows of each query, which all take the same parameters; raises as `query`."""
        return await asyncio.gather(*(self.query(sql, **values) for sql in statements))


def _query(client: Client, sql: str, parameters: dict[str, Any]) -> list[QueryRow]:
    result = client.query(sql, parameters=parameters)
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
