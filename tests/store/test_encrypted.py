"""Connections to a ClickHouse that wants TLS, at any port."""

import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lightningbus.bus.security.certificates import CA, CERT, KEY, SERVER, CertificateAuthority
from lightningbus.store.clickhouse.client import StoreUnreachableError, connect
from tests.polling import HANG_SECONDS
from tests.store.conftest import prepared

HANDSHAKE = 0x16
"""First byte of a TLS connection: the content type of a handshake record (RFC 8446, section 5.1)."""
SECRET = "topsecret"


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A directory with a server's certificate and the authority that signed it."""
    authority = CertificateAuthority.create()
    authority.issue(tmp_path, "clickhouse", SERVER, hosts=["127.0.0.1"])
    authority.write(tmp_path)
    return tmp_path


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Give each connection to ``answer`` in a thread of its own; the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


def forward(port: int, context: ssl.SSLContext, plain: socket.socket) -> None:
    """Take TLS off a connection, and pass on what it holds."""
    with context.wrap_socket(plain, server_side=True) as ours, socket.create_connection(("127.0.0.1", port)) as theirs:
        back = threading.Thread(target=move, args=(theirs, ours))
        back.start()
        move(ours, theirs)
        back.join(HANG_SECONDS)


def move(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until either side has ended."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.integration
def test_a_server_with_tls_is_asked_at_any_port(certificates: Path, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / CERT, certificates / KEY)
    with prepared(tmp_path / "store") as store:
        address = urlsplit(store.url)
        assert address.port is not None
        with listening(partial(forward, address.port, context)) as port:
            user = f"{address.username}:{address.password}@" if address.username else ""
            client = connect(f"https://{user}127.0.0.1:{port}?ca_cert={certificates / CA}", None)
            assert client.query("SELECT 1").result_rows == [(1,)]
            client.close()
            with pytest.raises(StoreUnreachableError, match="no ClickHouse answers"):
                connect(f"https://{user}127.0.0.1:{port}", None)  # nobody here knows the authority


@pytest.mark.parametrize(("scheme", "is_encrypted"), [("https", True), ("http", False)])
def test_the_scheme_decides_whether_a_password_is_sent_in_the_clear(scheme: str, is_encrypted: bool) -> None:
    received: list[bytes] = []

    def read(connection: socket.socket) -> None:
        received.append(connection.recv(65536))

    with listening(read) as port, pytest.raises(StoreUnreachableError) as error:
        connect(f"{scheme}://writer:{SECRET}@127.0.0.1:{port}")
    assert received and all((data[0] == HANDSHAKE) is is_encrypted for data in received)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("clickhouse://writer:topsecret@127.0.0.1:9000", "form https://user:password@host:port"),
        ("writer:topsecret@127.0.0.1:8123", "form https://user:password@host:port"),
        ("https:/writer:topsecret@127.0.0.1:8443", "form https://user:password@host:port"),
        ("https://writer:topsecret@[::1", "form https://user:password@host:port"),
        ("https://writer:topsecret@127.0.0.1:port", "form https://user:password@host:port"),
        ("http://writer:topsecret@127.0.0.1:8443", "without TLS at the port of TLS: write https://"),
        ("http://127.0.0.1:1?passwd=topsecret", "the query of http://127.0.0.1:1 is not to be used"),
        ("http://127.0.0.1:1?query_limit=2", "no ClickHouse answers at http://127.0.0.1:1:"),
    ],
)
def test_an_address_of_another_form_is_refused_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(StoreUnreachableError, match=re.escape(reason)) as error:
        connect(url)
    assert SECRET not in str(error.value)
