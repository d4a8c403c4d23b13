"""Checks that ClickHouse answers a query and has disk space, also while there is nothing to insert."""

import asyncio
import logging

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.common import disk_space
from lightningbus.common.aio import run_in_daemon_thread
from lightningbus.store.clickhouse.client import query_row
from lightningbus.store.clickhouse.query_limits import is_unreachable
from lightningbus.store.settings import StoreSettings

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
TIMEOUT_SECONDS = 5


class ClickHouseProbe:
    """Checks whether ClickHouse answers, and keeps the last result."""

    def __init__(self, client: Client, settings: StoreSettings) -> None:
        """Prepare the probe. The client's timeout bounds a check: a server may answer pings and no query."""
        self._client, self._settings = client, settings
        self.is_answering = True
        self.disk_problem = ""
        """A sentence where there is little disk space."""

    async def run(self) -> None:
        """Check for ever."""
        while True:
            try:
                free = await run_in_daemon_thread(self._read_free_bytes)
                self.disk_problem = disk_space.record_free("store", free, self._settings.disk_free_mib)
                self.is_answering = True
            except (OSError, ClickHouseError) as error:  # an access error is an answer too
                self.is_answering = not is_unreachable(error)
                log.debug("cannot read the free disk space: %s", error)
            await asyncio.sleep(INTERVAL_SECONDS)

    def _read_free_bytes(self) -> int:
        """Measure the free space of ClickHouse's disk, or of the embedded engine's directory; blocks.

        The embedded engine is not queried: it is in this process, and a query would wait for those of readers.
        """
        if self._settings.url is None:
            return disk_space.free_bytes(self._settings.data_dir)
        return int(query_row(self._client, "SELECT min(free_space) FROM system.disks")[0])
