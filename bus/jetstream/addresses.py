"""Addresses of the bus: validation, need of TLS, and a form without secrets. Pure."""

from urllib.parse import urlsplit

from lightningbus.bus.errors import AddressError

SCHEMES = ("nats", "tls")
BARE_SIGNS = (
    "the bus address has signs in its user or password that end them there: percent-encode them, such as p%2Fw%23d for "
    "p/w#d"
)
DEFAULT_URL = "nats://127.0.0.1:4222"
"""Address of a bus that nothing names."""


def server_addresses(urls: str) -> list[str]:
    """Split a list of addresses at commas and add missing schemes; raise `AddressError` for an invalid one."""
    return [_check_address(url, urls) for url in urls.split(",")]


def wants_tls(addresses: list[str]) -> bool:
    """Return whether any address is ``tls://``. Then all use TLS, because servers of a cluster name each other."""
    return any(address.startswith("tls://") for address in addresses)


def without_secrets(urls: str) -> str:
    """Remove users and passwords from a list of addresses, for logs."""
    split = [url.partition("://") if "://" in url else ("", "", url) for url in urls.split(",")]
    return ",".join(f"{scheme}{mark}{rest.rpartition('@')[2]}" for scheme, mark, rest in split)


def names_user(addresses: list[str]) -> bool:
    """Return whether an address has a user with a password, or a token."""
    return any("@" in address for address in addresses)


def _check_address(url: str, urls: str) -> str:
    try:
        return _complete_address(url, urls)
    except AddressError:
        if _has_bare_signs(url, urls):
            raise AddressError(BARE_SIGNS) from None  # Without any part of the address: it may be of the password.
        raise


def _has_bare_signs(url: str, urls: str) -> bool:
    """Return whether a user or password may have signs that end it in an address, a comma too."""
    user, mark, _ = url.rpartition("://")[2].rpartition("@")
    following = urls.partition(url)[2].partition("://")[0] if url else ""
    return any(sign in user for sign in "/?#@") if mark else "@" in following


def _complete_address(url: str, urls: str) -> str:
    label = f"the bus address {without_secrets(urls)!r}"
    if not urls:
        raise AddressError(f"{label} is empty: it is nats://host:port, or tls://host:port")
    if not url:
        raise AddressError(f"{label} has an empty member: addresses stand with one comma between them")
    if any(sign.isspace() for sign in url):
        raise AddressError(f"{label} has a space in it")
    scheme, mark, _ = url.partition("://")
    if mark and scheme.lower() not in SCHEMES:
        raise AddressError(f"{label} starts with {scheme}://, not nats:// or tls://")
    whole = f"{scheme.lower()}{url[len(scheme) :]}" if mark else f"nats://{url}"
    try:
        parts = urlsplit(whole)
    except ValueError:
        raise AddressError(f"{label} is no address: it is nats://host:port, or tls://host:port") from None
    try:
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        has_port = False
    if not has_port:
        raise AddressError(f"{label}: a port is a number from 1 to 65535")
    if not parts.hostname:
        raise AddressError(f"{label} names no host")
    if parts.path or parts.query or parts.fragment:
        raise AddressError(f"{label} has more than host and port")
    return whole
