"""Servers that ask nobody for a password: beyond loopback each warns at its start, once, and says what to do."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.common.listeners import find_reachable_host, open_listener, url_of
from lightningbus.learner.publishing.broadcaster import Broadcaster
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.processes.health_server import HealthServer
from lightningbus.store.embedded.http_interface import HttpInterface
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
ON_LOOPBACK_ALONE = {
    "lightningbus/run/preflight/scripted_node.py",
    "runners/agent/relay_script.py",
    "runners/workspaces/containers/guest_script.py",  # of its container
}
Serve = Callable[[str, Path], AbstractAsyncContextManager[Any]]


def _page(host: str, _: Path) -> AbstractAsyncContextManager[Any]:
    return serve(UiServer(cast("Reader", None), host, lambda: "no bus"), host, 0)


@asynccontextmanager
async def _broadcaster(host: str, directory: Path) -> AsyncIterator[None]:
    address = "192.0.2.2" if host == "0.0.0.0" else host  # it takes one address, not all
    settings = LearnerSettings.model_validate(
        {
            "model_path": directory,
            "checkpoint_dir": directory,
            "weights": {"broadcast": {"backend": "gloo", "host": address}},
        }
    )
    async with Broadcaster(settings, list):
        yield


SERVERS: dict[str, tuple[Serve, str]] = {
    "SQL": (lambda host, _: HttpInterface(cast("Any", None), host, 0, "key"), "ClickHouse server with users (--url)"),
    "the page": (_page, "a proxy that asks for one"),
    "health": (lambda host, _: HealthServer("store").serve(f"{host}:0"), "only your monitoring"),
    "the bus": (lambda host, directory: nats_server(directory, host, open=True), "lightningbus bus create-users"),
    "the broadcast of weights": (_broadcaster, "only the learner and its nodes"),
}


@pytest.mark.parametrize("what", SERVERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_server_that_asks_nobody_warns_beyond_loopback(
    what: str, host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, advice = SERVERS[what]
    with caplog.at_level(logging.WARNING):
        async with start(host, tmp_path):
            pass
    warnings = [line.getMessage() for line in caplog.records if "asks nobody for a password" in line.getMessage()]
    assert len(warnings) == (host == "0.0.0.0"), warnings
    for warning in warnings:
        assert warning.startswith(f"{what} at ") and advice in warning
        assert "0.0.0.0" not in warning, "it has an address that others use"


@pytest.mark.parametrize(
    "head",
    [b"GET /?run=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nX-Long: %s\r\n\r\n"],
)
async def test_a_request_that_cannot_be_read_is_one_line_of_the_log(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with serve(UiServer(cast("Reader", None), "127.0.0.1", lambda: "no bus"), "127.0.0.1", 0) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(head % (b"secret" * 20_000))
            answer = await reader.read()
            writer.close()
    first, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in first.partition(b"\r\n")[0] and body.count(b"\n") == 0, answer
    (line,) = [record for record in caplog.records if "HTTP" in record.getMessage()]
    assert line.levelname == "INFO" and line.exc_info is None and "secret" not in line.getMessage()


def test_no_role_has_another_way_to_serve() -> None:
    """What asks for a key is on `HttpServer`; what asks nobody is on `serve_without_password`, which warns."""
    folders = ("bus", "common", "runners", "store", "learner", "inference", "graders", "auditor", "lightningbus")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()]
    serving = {
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(r"\b(web\.AppRunner|TCPSite|SockSite|run_app|start_server)\(", path.read_text())
    }
    assert serving == {"common/http_server.py", "common/listeners.py"} | ON_LOOPBACK_ALONE


async def test_a_url_is_one_that_others_use() -> None:
    with open_listener("0.0.0.0", 0, "port") as listener:
        port = listener.getsockname()[1]
        assert url_of("0.0.0.0", listener) == f"http://{find_reachable_host('0.0.0.0')}:{port}"
        assert url_of("127.0.0.1", listener) == f"http://127.0.0.1:{port}"
