"""Checks the Host and Origin headers of requests, since a web site can make a browser send requests here.

With DNS rebinding a site points its own name at this machine and can read the replies, so unknown names are refused.
A cross-site request by our own name is sent even though its reply cannot be read, so it is refused as well.
"""

import socket
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})
SAME_SITE = frozenset({"", "none", "same-origin"})
"""Values of ``Sec-Fetch-Site`` for requests that no other site made; only browsers send the header."""


def is_allowed_host(host: str, listen_host: str, allowed_hosts: Collection[str] = ()) -> bool:
    """Return whether a Host header names this server or one of ``allowed_hosts``; raise ValueError for an invalid host.

    IP addresses and names without a dot are safe: an outsider cannot point one here.
    """
    name = urlsplit(f"//{host}").hostname or ""
    if name in LOOPBACK_HOSTS or name == listen_host.lower() or name in {allowed.lower() for allowed in allowed_hosts}:
        return True
    return listen_host in WILDCARD_HOSTS and (
        name == socket.gethostname().lower() or "." not in name or _is_address(name)
    )


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another site sent a request."""
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower():
        return True
    return headers.get("Sec-Fetch-Site", "") not in SAME_SITE


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
