"""Sentences about arguments that an environment does not take. Pure."""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

MAX_LISTED, MAX_VALUE = 20, 80
"""Most known names that are listed, and most characters of a value."""


def check_names(arguments: Iterable[str], function: Callable[..., Any]) -> None:
    """Raise ValueError naming an argument that a function does not take by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    for name in arguments:
        if name not in known:
            raise ValueError(f"{name}: there is no such argument; {_suggest(name, known)}")


def describe_wrong_fields(problems: Sequence[Any], config: object = None) -> str:
    """Describe the errors that pydantic lists for a validation, by the name and the value of each field.

    ``config`` is a valid object of the class: an unknown name is told from the fields that its levels have.
    """
    return "; ".join(_describe(problem, config) for problem in problems)


def drop_fields(arguments: dict[str, Any], problems: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments without the wrong ones, which are known by their place."""
    wrong = [tuple(problem["loc"]) for problem in problems]

    def copy(level: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
        return {
            name: copy(value, (*place, name)) if isinstance(value, dict) else value
            for name, value in level.items()
            if (*place, name) not in wrong
        }

    return copy(arguments, ())


def _describe(problem: Any, config: object) -> str:
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        *above, name = problem["loc"]
        return f"{place}: there is no such argument; {_suggest(str(name), _list_fields(config, above))}".rstrip("; ")
    if problem["type"] == "missing":
        return f"{place}: it is needed"
    return f"{place}: {problem['msg']}, not {str(problem['input'])[:MAX_VALUE]!r}".removeprefix(": ")


def _list_fields(config: object, place: Iterable[Any]) -> Collection[str]:
    for name in place:
        config = getattr(config, str(name), None)
    return list(getattr(type(config), "model_fields", ()))


def _suggest(name: str, known: Collection[str]) -> str:
    """Word a clause: the nearest known name, else all of them if they are few."""
    if near := get_close_matches(name, known, n=1):
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(sorted(known))}" if 0 < len(known) <= MAX_LISTED else ""
