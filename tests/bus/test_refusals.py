"""Requests that JetStream refuses: a command says in one sentence what to do."""

from pathlib import Path

import pytest
from nats.errors import NoRespondersError
from nats.js.errors import APIError, BadRequestError, ServerError

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.refusals import explain_refusal

pytestmark = pytest.mark.integration
GIB_MISSING = -15 * 1024
"""Leaves a server 1 GiB of storage, less than the streams reserve."""


async def test_replicas_on_a_single_server_are_refused_in_a_sentence(nats_url: str) -> None:
    async with Bus.connect(nats_url) as bus:
        with pytest.raises(BusError, match=r"TASKS cannot be made: .*not in a cluster: leave out --replicas"):
            await bus.provision(replicas=3)


async def test_server_with_too_little_storage_says_how_much_is_needed(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, more_mib=GIB_MISSING)
    await server.start()
    try:
        async with Bus.connect(server.url) as bus:
            with pytest.raises(BusError, match=r"reserve 6\.1 GiB together.*raise max_file_store.*--size"):
                await bus.provision()
    finally:
        await server.stop()


async def test_any_request_that_jetstream_refuses_ends_a_connection_with_a_bus_error(nats_url: str) -> None:
    with pytest.raises(BusError, match="stream not found"):
        async with Bus.connect(nats_url) as bus:
            await bus.js.purge_stream("TASKS")


def test_unknown_refusal_keeps_the_servers_own_words() -> None:
    error = BadRequestError(code=400, err_code=19999, description="something new")
    assert "something new, error 19999" in explain_refusal(error)
    assert "GiB" not in explain_refusal(error, 2**30)


@pytest.mark.parametrize("error", [NoRespondersError(), APIError(), ServerError(code=500, description="broken")])
def test_every_failed_request_has_a_sentence(error: Exception) -> None:
    assert explain_refusal(error).strip()  # type: ignore[arg-type]
