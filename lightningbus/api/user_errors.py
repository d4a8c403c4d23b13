"""Errors that a user can put right, as one kind of exception."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isfunction, signature

from lightningbus.api.settings import PATHS
from lightningbus.bus.errors import BusError
from lightningbus.common.listeners import AddressInUseError
from lightningbus.run.errors import UserError
from lightningbus.tasks.errors import TaskFileError

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)(?: ([A-Z]{2,})\b)?")
_ADVICE = re.compile(r"\b(raise|lower|set) ([a-z_]+(?:\.[a-z_]+)+)")
_SHORT_NAMES = {".".join(path): name for name, path in PATHS.items()}
_IN_PYTHON = re.compile(r" \(in Python [^)]*\)")


@contextmanager
def as_user_error() -> Iterator[None]:
    """Raise `UserError` for errors of bus and task files too, inside the block; options are named as in Python."""
    try:
        yield
    except (BusError, TaskFileError, AddressInUseError) as error:
        raise UserError(name_as_in_python(str(error))) from error
    except UserError as error:
        if (sentence := name_as_in_python(str(error))) == str(error):
            raise
        raise UserError(sentence) from error


def name_as_in_python(sentence: str) -> str:
    """Write a command's options as arguments: ``--base-model DIR`` as ``base_model=DIR``.

    So are settings with a short name that the sentence says to change: ``raise max_steps=``.
    Commands in backticks stay, and options that no function of the API has, such as vLLM's. Pure.
    """
    parts = sentence.split("`")
    for number in range(0, len(parts), 2):
        part = _OPTION.sub(_write_argument, _IN_PYTHON.sub("", parts[number]))
        parts[number] = _ADVICE.sub(_write_short_name, part)
    return "`".join(parts)


def _write_argument(match: re.Match[str]) -> str:
    name, value = match.groups()
    argument = name.replace("-", "_")
    return f"{argument}={value or 'True'}" if argument in _list_arguments() else match[0]


def _write_short_name(match: re.Match[str]) -> str:
    verb, path = match.groups()
    return f"{verb} {_SHORT_NAMES[path]}=" if path in _SHORT_NAMES else match[0]


@cache
def _list_arguments() -> frozenset[str]:
    """List the names of all arguments of the API."""
    api = import_module("lightningbus")
    members = [getattr(api, name) for name in api.__all__]
    methods = [method for each in members if isclass(each) for method in vars(each).values()]
    functions = [each for each in (*members, *methods) if isfunction(each)]
    return frozenset(name for each in functions for name in signature(each).parameters)


def require_package(name: str, extra: str) -> None:
    """Raise `UserError` that says what to install, unless a package is there."""
    if find_spec(name) is None:
        raise UserError(f"{name} is not installed: pip install 'lightningbus[{extra}]'")
