"""Check that this installation of lightningbus is complete."""

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from lightningbus.common.missing_modules import DISTRIBUTION, is_own_module

MAX_NAMED = 3
_IMPORT = re.compile(r"^[ \t]*from ([\w.]+) import ([\w, ]*)", re.M)


def describe_missing_parts() -> str:
    """Name the first missing parts, and how many more there are; empty if the installation is complete."""
    missing = sorted({*_find_missing_files(), *_find_missing_modules()})
    if len(missing) <= MAX_NAMED:
        return ", ".join(missing)
    return f"{', '.join(missing[:MAX_NAMED])} and {len(missing) - MAX_NAMED} more"


def _find_missing_files() -> Iterator[str]:
    """Find installed files that are gone."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return
    yield from (str(file) for file in files if file.suffix != ".pyc" and not Path(str(file.locate())).exists())


def _find_missing_modules() -> Iterator[str]:
    """Find modules of lightningbus that its modules import and Python does not find; nothing is imported for it."""
    for root in _search(DISTRIBUTION) or ():
        for directory, _, names in os.walk(root, followlinks=True):
            for source in (Path(directory, name) for name in names if name.endswith(".py")):
                for module, imported in _IMPORT.findall(source.read_text("utf-8", errors="replace")):
                    if is_own_module(module):
                        yield from _missing_of(module, imported)


@cache
def _missing_of(module: str, names: str) -> tuple[str, ...]:
    """Return the module if it is missing, else those of ``names`` that its package neither contains nor defines."""
    submodules = _search(module)
    if submodules is None:
        return (module,)
    missing = []
    for name in re.findall(r"(?:^|,)\s*(\w+)", names) if submodules else ():
        is_defined = any(re.search(rf"\b{name}\b", _read(Path(path) / "__init__.py")) for path in submodules)
        if not is_defined and _search(f"{module}.{name}") is None:
            missing.append(f"{module}.{name}")
    return tuple(missing)


@cache
def _search(module: str) -> list[str] | None:
    """Return the directories of a package, an empty list for a plain module, and None if there is no such module."""
    try:
        spec = find_spec(module)
    except ImportError:
        return None
    return None if spec is None else list(spec.submodule_search_locations or ())


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
