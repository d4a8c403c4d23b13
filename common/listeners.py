"""Listening sockets: their addresses, whether other machines reach them, and small HTTP servers on them."""

import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from lightningbus.common.observability.http_errors import quiet_http_logger

log = logging.getLogger(__name__)

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


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connectable_host(host: str) -> str:
    """Return the address by which this machine connects to a server on ``host``, which may mean all interfaces."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


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
    """Build the URL by which other machines reach a listener, from the name or address it was opened with."""
    return f"http://{find_reachable_host(host)}:{listener.getsockname()[1]}"


def local_url_of(host: str, listener: socket.socket) -> str:
    """Build the URL by which this machine reaches a listener, from the name or address it was opened with."""
    return f"http://{connectable_host(host)}:{listener.getsockname()[1]}"


def warn_if_reachable(what: str, host: str, address: str, advice: str) -> None:
    """Log one warning if other machines reach ``host``: ``what`` at ``address`` asks nobody for a password.

    Every server that asks nobody calls this at its start. ``advice`` is a clause: who can do what, and what to do.
    """
    if not is_loopback(host):
        log.warning("%s at %s asks nobody for a password, and other machines reach it: %s", what, address, advice)


@asynccontextmanager
async def serve_without_password(
    app: web.Application,
    host: str,
    listener: socket.socket,
    what: str,
    advice: str,
    shutdown_seconds: float = 1,
    auto_decompress: bool = True,
) -> AsyncIterator[str]:
    """Serve an application that asks nobody for a password while the block runs; yields its URL for other machines.

    ``what`` and ``advice`` are those of `warn_if_reachable`.
    """
    url = url_of(host, listener)
    warn_if_reachable(what, host, url, advice)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=shutdown_seconds,
        auto_decompress=auto_decompress,
        logger=quiet_http_logger(),
    )
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield url
    finally:
        await runner.cleanup()
        listener.close()
