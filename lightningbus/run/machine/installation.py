"""Check that this installation of lightningbus is complete."""

import ast
import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from lightningbus.common.missing_modules import DISTRIBUTION, is_own_module

MAX_NAMED = 3


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
                for node in ast.walk(ast.parse(source.read_bytes())):
                    if isinstance(node, ast.ImportFrom) and not node.level and is_own_module(node.module or ""):
                        yield from _list_missing(node.module or "", tuple(alias.name for alias in node.names))


@cache
def _list_missing(module: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the module if it is missing, else those of ``names`` that its package neither contains nor defines."""
    submodules = _search(module)
    if submodules is None:
        return (module,)
    if not submodules:
        return ()
    defined = frozenset().union(*map(_defined_names, submodules))
    return tuple(f"{module}.{name}" for name in names if name not in defined and _search(f"{module}.{name}") is None)


@cache
def _defined_names(package: str) -> frozenset[str]:
    """Return the names in a package's ``__init__.py``: assigned, imported, defined or listed in a string."""
    source = Path(package, "__init__.py")
    nodes = list(ast.walk(ast.parse(source.read_bytes()))) if source.exists() else []
    return frozenset(
        str(name)
        for node in nodes
        for name in (getattr(node, field, None) for field in ("name", "asname", "id", "value"))
        if isinstance(name, str)
    )


@cache
def _search(module: str) -> list[str] | None:
    """Return the directories of a package, an empty list for a plain module, and None if there is no such module."""
    try:
        spec = find_spec(module)
    except ImportError:
        return None
    return None if spec is None else list(spec.submodule_search_locations or ())
