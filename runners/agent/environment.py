"""The environment of an agent's processes: a fixed list, the operator's additions, and nothing else. Pure."""

from collections.abc import Iterable, Mapping

ALLOWED_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
"""Variables that every agent gets from the runner: program paths, language and time zone."""
LOCALE = "LC_"


def agent_environment(ours: Mapping[str, str], entries: Iterable[str]) -> dict[str, str]:
    """Build an agent's environment; an entry is a name to pass on, if it is set, or NAME=VALUE."""
    environment = {name: value for name, value in ours.items() if name in ALLOWED_VARIABLES or name.startswith(LOCALE)}
    for entry in entries:
        name, is_set, value = entry.partition("=")
        if is_set:
            environment[name] = value
        elif name in ours:
            environment[name] = ours[name]
    return environment
