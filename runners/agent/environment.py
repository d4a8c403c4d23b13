"""The environment of an agent's processes: a fixed list, the operator's additions, and nothing else. Pure."""

from collections.abc import Iterable, Mapping

from lightningbus.common.loopback_proxies import bypass_loopback

ALLOWED_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
"""Variables that every agent gets from the runner: program paths, language and time zone."""
LOCALE = "LC_"


def agent_environment(ours: Mapping[str, str], entries: Iterable[str], is_here: bool = True) -> dict[str, str]:
    """Build an agent's environment; an entry is a name to pass on, if it is set, or NAME=VALUE.

    Unless it ``is_here``, on this machine, it gets the entries alone. Proxies among them are not asked for the gateway.
    """
    names = [name for name in ours if is_here and (name in ALLOWED_VARIABLES or name.startswith(LOCALE))]
    environment = {name: ours[name] for name in names}
    for entry in entries:
        name, is_set, value = entry.partition("=")
        if is_set:
            environment[name] = value
        elif name in ours:
            environment[name] = ours[name]
    return environment | bypass_loopback(environment)
