"""Listening sockets, and small HTTP servers on them."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

DOCUMENTATION_ADDRESS = ("192.0.2.1", 9)
"""An address that belongs to nobody (RFC 5737), so that the route to it is the default one."""


class AddressInUseError(Exception):
    """Nothing can listen on an address: its port is taken, or this machine does not have it."""


def open_listener(host: str, port: int, setting: str, advice: str = "set another port, or 0") -> socket.socket:
    """Open a listening TCP socket; port 0 takes a free one.

    Raises `AddressInUseError`: its sentence begins with ``setting``, the name of the setting with the address, and ends
    with ``advice``.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0]
        raise AddressInUseError(f"{setting}: cannot listen on {host}:{port}: {reason}; {advice}") from error


def find_reachable_host(host: str) -> str:
    """Return the host by which other machines reach a server that listens on ``host``.

    Where that means all interfaces: this machine's address on its default route, else its name.
    """
    if host not in ("", "0.0.0.0", "::"):
        return f"[{host}]" if ":" in host else host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(DOCUMENTATION_ADDRESS)  # a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
        except OSError:  # no route
            return socket.gethostname()


def url_of(host: str, listener: socket.socket) -> str:
    """Build the URL of a listener, by the name or address it was opened with."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


@asynccontextmanager
async def serve_app(
    app: web.Application, listener: socket.socket, shutdown_seconds: float = 1, auto_decompress: bool = True
) -> AsyncIterator[None]:
    """Serve an application on a listener while the block runs."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_seconds, auto_decompress=auto_decompress)
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
        listener.close()
