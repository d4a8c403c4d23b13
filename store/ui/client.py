"""Reading the store, a few questions at a time, and answers as JSON can hold them."""

import asyncio
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from store.clickhouse.query_limits import sentence

Row = dict[str, Any]

AT_ONCE = 4
"""Questions on their way at the same time: the store has other things to do."""


class Unanswered(Exception):
    """ClickHouse did not answer; the message is one sentence to show."""


class Reader:
    """Questions to one `store.clickhouse.client.reader`, from the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """All rows, as JSON can hold them; raises `Unanswered`."""
        async with self._turn:
            try:
                return await asyncio.to_thread(self._ask, sql, parameters)
            except ClickHouseError as error:
                raise Unanswered(sentence(error)) from error
            except OSError as error:
                raise Unanswered(f"the store does not answer: {error}") from error

    def _ask(self, sql: str, parameters: dict[str, Any]) -> list[Row]:
        result = self._client.query(sql, parameters=parameters)
        return [{name: plain(value) for name, value in row.items()} for row in result.named_results()]


def plain(value: Any) -> Any:
    """A value as JSON has it: no NaN, no infinity, times in ISO 8601."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
