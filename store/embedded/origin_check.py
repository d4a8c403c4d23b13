"""Who comes by HTTP. A browser goes wherever a site sends it, so names and origins are looked at.

A site can have its own name point at this machine, and then reads what is answered; a page that asks for a name it was
not told to have is refused that. What a site sends here by our own name it cannot read, but it is sent.
"""

import socket
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})
SAME_SITE = frozenset({"", "none", "same-origin"})
"""What a browser says of a request that no other site made (``Sec-Fetch-Site``); others than browsers say nothing."""


def is_allowed_host(host: str, listen_host: str, allowed_hosts: Collection[str] = ()) -> bool:
    """Whether a Host header names this server or one of ``allowed_hosts``; raises ValueError for an invalid host.

    Addresses need no name, and nobody outside can own a name without a dot: neither can be made to point here.
    """
    name = urlsplit(f"//{host}").hostname or ""
    if name in LOOPBACK_HOSTS or name == listen_host.lower() or name in {allowed.lower() for allowed in allowed_hosts}:
        return True
    return listen_host in WILDCARD_HOSTS and (
        name == socket.gethostname().lower() or "." not in name or _is_address(name)
    )


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site sent a request."""
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
