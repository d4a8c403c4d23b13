"""Real servers for every test: free ports, temporary folders, gone when the test ends."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bus.client import Bus
from bus.embedded.nats_server import NatsServer, nats_server

# What is random here is what is tried, not how long a busy machine takes for it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


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
