"""What one host gets when it knocks at another's door."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightningbus.bus.security.certificates import CA, CERT, KEY
from tests.hosts.network import Host

SECONDS = 5.0
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'
TABLE = re.compile(r"<!-- ports: begin -->\n(.*)\n<!-- ports: end -->", re.S)
BEYOND, LOOPBACK = "beyond loopback", "loopback"


@dataclass(frozen=True, slots=True)
class Door:
    """A line of the table in SECURITY.md; no port: any."""

    host: str
    port: int | None
    listens: str


def table(page: Path) -> list[Door]:
    """The doors a page names."""
    match = TABLE.search(page.read_text())
    assert match is not None
    doors = []
    for line in match[1].splitlines()[2:]:
        host, port, listens, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        number = re.match(r"\d+", port)
        doors.append(Door(host, int(number[0]) if number else None, listens))
    return doors


def refused(caller: Host, address: str, port: int) -> bool:
    """Whether nobody listens there, seen from the caller."""
    with caller.inside():
        try:
            socket.create_connection((address, port), timeout=SECONDS).close()
        except ConnectionRefusedError:
            return True
    return False


def certificate(directory: Path, prefix: str = "") -> ssl.SSLContext:
    """A client that has this certificate and believes who signed it."""
    context = ssl.create_default_context(cafile=directory / f"{prefix}{CA}")
    context.load_cert_chain(directory / f"{prefix}{CERT}", directory / f"{prefix}{KEY}")
    return context


def nobody(directory: Path, prefix: str = "") -> ssl.SSLContext:
    """A client without a certificate, which believes the server all the same."""
    return ssl.create_default_context(cafile=directory / f"{prefix}{CA}")


def greeted(caller: Host, address: str, port: int, context: ssl.SSLContext) -> str:
    """What a nats-server says to a client that has shown its certificate, and no user; empty if it hung up."""
    text = b""
    with _connected(caller, address, port) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=address) as secured:
                secured.sendall(CONNECT)
                while more := secured.recv(65536):
                    text += more
        except OSError:  # of which a failed handshake is one
            pass
    return text.decode()


def status_of(caller: Host, address: str, port: int, method: str, path: str, key: str = "") -> int:
    """Status of a request to a gateway."""
    with _connected(caller, address, port) as plain:
        connection = http.client.HTTPConnection(address, port)
        connection.sock = plain
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request(method, path, json.dumps({}) if method == "POST" else None, headers)
        return connection.getresponse().status


@contextmanager
def _connected(caller: Host, address: str, port: int) -> Iterator[socket.socket]:
    with caller.inside():
        connection = socket.create_connection((address, port), timeout=SECONDS)
    with connection:
        yield connection
