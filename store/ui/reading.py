"""Reading the store and nothing else: every question is read-only and has its limits, whatever it says."""

import asyncio
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

Row = dict[str, Any]

LIMITS = {
    "max_execution_time": 10,
    "max_result_rows": 10_000,
    "max_memory_usage": 2_000_000_000,
}
"""Per question: seconds, rows and bytes."""
AT_ONCE = 4
"""Questions on their way at the same time: the store has other things to do."""
SAID = re.compile(r"DB::Exception: (.*?)(?: \(version [^)]*\))?(?: \([A-Z_]+\))?\s*$", re.DOTALL)


class Unanswered(Exception):
    """ClickHouse did not answer; the message is one sentence to show."""


def settings_for(readonly: str) -> dict[str, int]:
    """Settings to send with each question, by what ``readonly`` is of the user already.

    readonly 1 forbids everything but reading, so it is sent, and last: nothing may be set after it. A user who has it
    may set nothing, and has limits of its own; one with 2 may set limits, but not readonly.
    """
    match readonly:
        case "0":
            return {**LIMITS, "readonly": 1}
        case "2":
            return dict(LIMITS)
        case _:
            return {}


class Reader:
    """Questions to one client, from the event loop."""

    def __init__(self, client: Client, settings: Mapping[str, int]) -> None:
        self._client, self._settings = client, dict(settings)
        self._turn = asyncio.Semaphore(AT_ONCE)

    @classmethod
    async def of(cls, client: Client) -> "Reader":
        """With the limits its user may set; raises `Unanswered`."""
        free = cls(client, {})
        rows = await free.rows("SELECT value FROM system.settings WHERE name = 'readonly'")
        return cls(client, settings_for(str(rows[0]["value"]) if rows else "0"))

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
        result = self._client.query(sql, parameters=parameters, settings=self._settings)
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


def sentence(error: Exception) -> str:
    """What ClickHouse says is wrong, on one line and without where in its code."""
    text = " ".join(str(error).split())
    found = SAID.search(text)
    if found is None and isinstance(error, OperationalError):
        return "the store does not answer any more; this page goes on when it is back"
    said = (found[1] if found else text).split(". Stack trace", 1)[0]
    if "UNKNOWN_TABLE" in text or "UNKNOWN_DATABASE" in text:
        said += ": has a store of this version written here?"
    return said[:400]
