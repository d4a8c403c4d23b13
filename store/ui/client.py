"""Queries to the store, a few at a time, with rows as JSON values."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.store.clickhouse.query_limits import explain_error, is_unreachable

QueryRow = dict[str, Any]

NO_STORE = "The store does not answer. This page goes on by itself as soon as a store or the run's files can be read."
MAX_CONCURRENT = 4
"""Concurrent queries, so that the store keeps up with its inserts."""
PATIENCE_SECONDS = 8.0
"""Seconds that queries wait for a store that does not answer: the run may have ended, and its files are opened next."""
HANDOVER_SECONDS = 60.0
"""Seconds that queries wait while another process has the files: a run that goes on, whose store answers next."""
RETRY_SECONDS = 0.5
"""Between two tries of a query while no store answers."""


class QueryFailedError(Exception):
    """A query failed; the message is one sentence to show."""


class StoreGoneError(QueryFailedError):
    """No store answers; the message names the remedy."""


class StoreState(StrEnum):
    """Source of a page: a running store, the files of a run that has ended, or nothing."""

    LIVE = "live"
    FINISHED = "finished"
    GONE = "gone"


class Reader:
    """Sends queries to a `lightningbus.store.clickhouse.client.connect_readonly` client from the event loop.

    The client may change while pages are open: `use` another one, or `lose` it. For ``patience`` seconds after it is
    lost, queries wait for the next one. So a store that returns at once is never reported as gone.
    """

    def __init__(self, client: Client | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._client, self._problem = client, NO_STORE
        self._own_patience = self._patience = patience
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._changed = asyncio.Event()
        self._running: dict[tuple[str, str], asyncio.Task[list[QueryRow]]] = {}
        self._state = StoreState.LIVE
        self._silent_since = -math.inf if client is None else None
        """Since when no store has answered, in seconds of the monotonic clock; None: it answers."""

    @property
    def state(self) -> StoreState:
        """The present source; gone once no store has answered for longer than the patience."""
        return self._state if self._client is not None or self._remaining_patience() > 0 else StoreState.GONE

    def use(self, client: Client, state: StoreState) -> None:
        """Send queries to this client from now on."""
        self._client, self._state, self._silent_since = client, state, None
        self._patience = self._own_patience
        self._changed.set()
        self._changed = asyncio.Event()

    def lose(self, problem: str, patience: float | None = None) -> None:
        """Wait for another client, then fail each query with ``problem``, a sentence that names the remedy.

        ``patience`` in seconds replaces the reader's own until the next client.
        """
        self._client, self._problem = None, problem
        if patience is not None:
            self._patience = patience
        self._note_silence()

    async def query(self, sql: str, **parameters: Any) -> list[QueryRow]:
        """Return all rows of a query, as JSON values; raise `QueryFailedError` or `StoreGoneError`.

        The same query while one is under way is asked once, and each caller gets rows of its own.
        """
        key = (sql, json.dumps(parameters, sort_keys=True))
        if (running := self._running.get(key)) is None:
            running = self._running[key] = asyncio.create_task(self._ask(sql, parameters))
            running.add_done_callback(lambda done: self._forget(key, done))
        return [dict(row) for row in await asyncio.shield(running)]

    def _forget(self, key: tuple[str, str], done: asyncio.Task[list[QueryRow]]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # nobody may be left who asks

    async def _ask(self, sql: str, parameters: dict[str, Any]) -> list[QueryRow]:
        while True:
            client = self._client
            try:
                async with self._slots:
                    if client is not None:
                        rows = await asyncio.to_thread(_query, client, sql, parameters)
                        self._silent_since = None if client is self._client else self._silent_since
                        return rows
            except (ClickHouseError, OSError) as error:
                if isinstance(error, ClickHouseError) and not is_unreachable(error):
                    raise QueryFailedError(explain_error(error)) from error
                self._note_silence()
            if (seconds := self._remaining_patience()) <= 0:
                raise StoreGoneError(self._problem if self._client is None else NO_STORE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(seconds, RETRY_SECONDS))

    def _note_silence(self) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def _remaining_patience(self) -> float:
        return math.inf if self._silent_since is None else self._silent_since + self._patience - time.monotonic()

    async def query_all(self, values: Mapping[str, Any], *statements: str) -> list[list[QueryRow]]:
        """Return all rows of each query, which all take the same parameters; raise as `query`."""
        return await asyncio.gather(*(self.query(sql, **values) for sql in statements))


def _query(client: Client, sql: str, parameters: dict[str, Any]) -> list[QueryRow]:
    result = client.query(sql, parameters=parameters)
    return [{name: to_json_value(value) for name, value in row.items()} for row in result.named_results()]


def to_json_value(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become null, times are ISO 8601."""
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
