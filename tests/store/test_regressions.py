"""A known defect of Agent Lightning's store, shown not to be ours; the number is its own."""

import asyncio

from lightningbus.bus.client import Bus
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start
from tests.store.test_store import drained, send


async def test_17_a_store_that_starts_again_holds_what_it_held(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    for part in batches("a", 0):
        await send(bus, part, f"a:{part.sequence}")
    await drained(bus)
    store.process.terminate()
    assert await asyncio.to_thread(store.process.wait, HANG_SECONDS) == 0
    again = await asyncio.to_thread(start_store, nats_url)
    assert again.fetch_value("SELECT count() FROM rollouts") == 1
