"""A dry run tries the servers that a run file names."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.embedded.nats_server import free_port
from lightningbus.run.preflight.server_checks import check_servers
from lightningbus.run.settings.run_file import RunSettings
from tests.store.conftest import serving

pytestmark = pytest.mark.integration


def find(**sections: Any) -> list[str]:
    return list(check_servers(RunSettings.model_validate(sections)))


async def test_a_bus_that_answers_is_named_with_its_version(nats_url: str) -> None:
    (line,) = await asyncio.to_thread(find, bus={"url": nats_url})
    assert line.startswith("bus.url: NATS 2.") and line.endswith(f"answers at {nats_url}")


def test_servers_that_do_not_answer_are_warnings_without_their_passwords() -> None:
    port = free_port()
    bus, store = find(bus={"url": f"nats://127.0.0.1:{port}"}, store={"url": f"http://me:secret@127.0.0.1:{port}"})
    assert bus.startswith(f"warning: bus.url: no NATS server answers at nats://127.0.0.1:{port}")
    assert store.startswith("warning: store.url: no ClickHouse answers at ") and f":{port}" in store
    assert "secret" not in store


def test_servers_that_the_run_starts_itself_are_not_tried() -> None:
    assert find(store={}) == []


def test_a_clickhouse_that_answers_is_named_with_its_version(tmp_path: Path) -> None:
    with serving(tmp_path) as store:
        (line,) = find(store={"url": store.url})
    assert line.startswith("store.url: ClickHouse ") and " answers at http://" in line
