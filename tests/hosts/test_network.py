"""The hosts themselves: a cable that is cut carries nothing, a slow one is slow, and nothing is left behind."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.hosts.network import NAMESPACES, Host, Network, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")
SLOW_SECONDS = 0.05


@contextmanager
def talking(host: Host, other: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from one host to another."""
    with other.inside():
        listener = socket.create_server((other.address, 0))
    with closing(listener):
        with host.inside():
            caller = socket.create_connection(listener.getsockname(), timeout=5)
        with closing(caller):
            answerer, _ = listener.accept()
            with closing(answerer):
                answerer.settimeout(5)
                yield caller, answerer


async def test_a_cut_cable_carries_nothing_and_a_slow_one_is_slow() -> None:
    async with Network() as network:
        item, other = network.host("one"), network.host("other")
        with talking(item, other) as (caller, answerer):
            with item.cut():
                caller.sendall(b"lost, and sent again")
                answerer.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    answerer.recv(1)
            answerer.settimeout(5)
            assert answerer.recv(64) == b"lost, and sent again"
            with item.slow(SLOW_SECONDS):
                began = time.monotonic()
                caller.sendall(b"?")
                answerer.sendall(answerer.recv(1))
                assert caller.recv(1) == b"?" and time.monotonic() - began >= 2 * SLOW_SECONDS
        with other.inside(), pytest.raises(ConnectionRefusedError):
            socket.create_connection((item.address, 1), timeout=5)


async def test_nothing_is_left_of_a_network_that_failed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="amid"):
        async with Network() as network:
            host = network.host("one")
            process = await host.start("sleeper", "sleep", "600", at=tmp_path)
            raise RuntimeError("amid")
    assert process.returncode is not None
    assert not (NAMESPACES / host.namespace).exists()
    assert not [path for path in Path("/sys/class/net").iterdir() if path.name.startswith(host.namespace[:6])]
