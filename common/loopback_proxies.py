"""No client asks a proxy for this machine: its addresses join the environment's list of hosts without a proxy. Pure."""

from collections.abc import Iterable, Mapping

HOSTS = ("localhost", "127.0.0.1", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
"""Names under which libraries look for the exceptions; most read the first one first, Go reads the second."""


def bypass_loopback(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Return the variables that keep requests to this machine from the environment's proxies; none without a proxy.

    ``hosts`` are further names and addresses of this machine.
    """
    if not any(name.lower() in PROXIES and value for name, value in environment.items()):
        return {}
    lists = [[entry.strip() for entry in environment.get(name, "").split(",") if entry.strip()] for name in EXCEPTIONS]
    filled = (lists[0] or lists[1], lists[1] or lists[0])  # Some libraries read the one name, some the other.
    return {name: _join((*entries, *HOSTS, *hosts)) for name, entries in zip(EXCEPTIONS, filled, strict=True)}


def _join(entries: Iterable[str]) -> str:
    unique = dict.fromkeys(entries)
    return "*" if "*" in unique else ",".join(unique)
