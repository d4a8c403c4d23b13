"""Real servers for every test: free ports, temporary folders, gone when the test ends."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePath

import pytest
from hypothesis import HealthCheck, settings

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer, nats_server
from tests import tiers

# What is random here is what is tried, not how long a busy machine takes for it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
os.environ.setdefault("LIGHTNINGBUS_FILES_OPEN_SECONDS", "0")  # what reads a run's files ends with its test
TESTS = PurePath(__file__).parent
process_guard = tiers.ProcessGuard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier; files with the longest tests come first, so that no worker is left with one."""
    ranks: dict[Path, int] = {}
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        fixtures = getattr(item, "fixturenames", ())
        tier = tiers.tier_of(PurePath(item.path).relative_to(TESTS), fixtures, markers)
        item.add_marker(tier)
        ranks[item.path] = max(ranks.get(item.path, 0), tiers.TIERS.index(tier))
    items.sort(key=lambda item: -ranks[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """No unit test starts a process, nor do its fixtures."""
    process_guard.is_active = item.get_closest_marker(tiers.UNIT) is not None
    try:
        return (yield)
    finally:
        process_guard.is_active = False


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A fresh nats-server."""
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def nats_url(nats: NatsServer) -> str:
    """Where the fresh nats-server listens."""
    return nats.url


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connected bus with all streams made."""
    async with Bus.connect(nats_url, name="test") as connected:
        await connected.provision()
        yield connected
