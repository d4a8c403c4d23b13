"""No client asks a proxy of the environment for this machine: the proxy here refuses every request, and counts them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightningbus.common.loopback_proxies import bypass_loopback
from lightningbus.runners.agent.environment import agent_environment
from lightningbus.store.clickhouse.client import connect
from tests.otlp import collecting
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, serving

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ASK = """
import sys, urllib.request, httpx, requests
url = sys.argv[1]
print(urllib.request.urlopen(url).status, httpx.get(url).status_code, requests.get(url).status_code)
"""
TRACE = """
from lightningbus.common.observability import tracing
tracing.setup("runner", "r-1")
with tracing.start_as_current_span("attempt"):
    pass
tracing.shutdown()
"""


class _Refusal(BaseHTTPRequestHandler):
    status = 403

    def answer(self) -> None:
        """Refuse, or answer as the server itself."""
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = do_CONNECT = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Page(_Refusal):
    status = 200


@pytest.fixture
def page() -> Iterator[str]:
    """URL of a server that answers every request."""
    yield from _serve(_Page)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    """A store that was started without any proxy."""
    with serving(tmp_path) as store:
        yield store


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a proxy that refuses all; the environment names it, and no exceptions."""
    for url in _serve(_Refusal):
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
        for name in VARIABLES:
            monkeypatch.setenv(name, url)
        yield url


def _serve(handler: type[_Refusal]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.paths = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        assert handler is _Page or server.paths == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_store_of_this_machine_is_asked_directly(store: StoreProcess, proxy: str, host: str) -> None:
    with connect(store.url.replace("127.0.0.1", host)) as client:
        assert client.query("SELECT 1").result_rows == [(1,)]


def test_a_command_asks_its_store_directly(store: StoreProcess, proxy: str) -> None:
    command = [sys.executable, "-m", "lightningbus", "query", "--sql", store.url, "SELECT 40 + 2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "42" in done.stdout, done.stderr


@pytest.mark.integration
def test_an_agent_with_a_proxy_reaches_the_gateway(proxy: str, page: str) -> None:
    environment = agent_environment(os.environ, [*VARIABLES, "NO_PROXY=.example.com"])
    done = subprocess.run(
        [sys.executable, "-c", ASK, page], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["200"] * 3, done.stderr


@pytest.mark.integration
def test_a_collector_of_this_machine_is_told_directly(proxy: str) -> None:
    with collecting() as collector:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        prelude = f"from lightningbus.common.observability import tracing; tracing.FLUSH_SECONDS = {HANG_SECONDS}\n"
        subprocess.run([sys.executable, "-c", prelude + TRACE], env=environment, check=True)
        assert [span.name for span in collector.spans] == ["attempt"]


def test_exceptions_of_the_environment_stay_and_no_proxy_needs_none() -> None:
    assert bypass_loopback({"NO_PROXY": "a.example"}) == {}
    assert bypass_loopback({"HTTP_PROXY": ""}) == {}
    joined = bypass_loopback({"https_proxy": "http://p", "no_proxy": "a.example, localhost", "NO_PROXY": "b"})
    assert joined == {"no_proxy": "a.example,localhost,127.0.0.1,::1", "NO_PROXY": "b,localhost,127.0.0.1,::1"}
    blank = bypass_loopback({"https_proxy": "http://p", "no_proxy": " ", "NO_PROXY": "b"})
    assert blank == dict.fromkeys(("no_proxy", "NO_PROXY"), "b,localhost,127.0.0.1,::1")
    assert bypass_loopback({"ALL_PROXY": "socks5://p", "NO_PROXY": "*"})["no_proxy"] == "*"
    assert bypass_loopback({"ALL_PROXY": "http://p"}, "127.0.0.2")["NO_PROXY"].endswith(",127.0.0.2")
