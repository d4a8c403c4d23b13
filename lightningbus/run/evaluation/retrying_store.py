"""Questions to the store of a run that may be starting again."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)
T = TypeVar("T")


class RetryingStore:
    """A client on the store that asks again until it is answered."""

    def __init__(self, client: Client, stores: Fleet) -> None:
        self._client, self._stores = client, stores

    async def ask(self, work: Callable[[Client], T]) -> T:
        """Return the result of blocking ``work``; a store that is being started again is waited for."""
        while True:
            try:
                return await asyncio.to_thread(work, self._client)
            except ClickHouseError as error:
                log.warning("the store cannot be asked: %s", shorten_line(str(error), 200))
                await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Wait until a store says what it has inserted, as it does each second."""
        await self._stores.wait_for_change()
