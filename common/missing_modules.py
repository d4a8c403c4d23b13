"""Error sentences for a missing module: they name its extra, or report an incomplete installation."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

DISTRIBUTION = "lightningbus"
"""Name of the distribution, and of the package that it installs."""
INCOMPLETE = (
    "this installation of lightningbus is incomplete: {name} cannot be found; install it again by "
    "`pip install --force-reinstall --no-deps` and what you installed it from"
)
NO_EXTRA = "{name} is not installed: `lightningbus doctor` says what to install"
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]")


def describe_missing_module(name: str | None, extra: str | None = None) -> str:
    """Explain a missing module by the ``name`` of a ModuleNotFoundError.

    ``extra`` installs the third-party packages that were imported; None: the extra whose requirements have the module.
    """
    name = name or "a module"
    if is_own_module(name):
        return INCOMPLETE.format(name=name)
    package = name.partition(".")[0]
    extra = extra or _find_extra(name) or _find_extra(package)
    name = name if find_spec(package) is not None else package
    return f"{name} is not installed: pip install 'lightningbus[{extra}]'" if extra else NO_EXTRA.format(name=name)


def is_own_module(name: str) -> bool:
    """Return whether a module is part of lightningbus."""
    return name.partition(".")[0] == DISTRIBUTION


def _find_extra(package: str) -> str | None:
    """Find the first extra with a requirement of a package's name."""
    try:
        requirements = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return None
    extras = {_normalise(match[1]): match[2] for line in reversed(requirements) if (match := _REQUIREMENT.match(line))}
    return extras.get(_normalise(package))


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
