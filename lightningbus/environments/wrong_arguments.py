"""Sentences about arguments that an environment does not take. Pure."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

MAX_LISTED, MAX_VALUE, MAX_LEVELS = 60, 80, 4
"""Most known names that are listed, most characters of a value, and most levels of names."""


def check_names(arguments: Iterable[str], function: Callable[..., Any]) -> None:
    """Raise ValueError naming an argument that a function does not take."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = list_names(function)
    for name in arguments:
        if name not in known:
            raise ValueError(f"{name}: there is no such argument; {_suggest(name, known)}")


def find_unnamed(arguments: Iterable[str], function: Callable[..., Any], passed_on: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each argument that a function takes without naming it, unless ``passed_on`` has the name.

    ``passed_on`` are the names that the function may give to others.
    """
    known = {*list_names(function), *passed_on}
    for name in arguments:
        if name not in known:
            sentence = f"{name}: {function.__name__} has no parameter of this name, and takes it all the same"
            yield "; ".join(filter(None, (sentence, _suggest_near(name, sorted(known)))))


def list_names(function: Callable[..., Any]) -> list[str]:
    """List the parameters of a function that can be given by name."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


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
    return list(_walk_fields(config, MAX_LEVELS))


def _walk_fields(config: object, num_levels: int) -> Iterator[str]:
    """Yield the names that are settings themselves; one of a further level has the name of that in front, and a dot."""
    for name in getattr(type(config), "model_fields", ()):
        nested = list(_walk_fields(getattr(config, name), num_levels - 1)) if num_levels > 1 else []
        yield from (f"{name}.{each}" for each in nested) if nested else [name]


def _suggest(name: str, known: Collection[str]) -> str:
    """Word a clause: the names that end like this one, or the nearest; else all of them if they are few."""
    listed = f"known are {', '.join(sorted(known))}" if 0 < len(known) <= MAX_LISTED else ""
    return _suggest_near(name, known) or listed


def _suggest_near(name: str, known: Collection[str]) -> str:
    by_end: dict[str, list[str]] = {}
    for each in known:
        by_end.setdefault(each.rpartition(".")[2], []).append(each)
    near = by_end.get(name) or get_close_matches(name, known, n=1)
    near = near or [each for end in get_close_matches(name, by_end, n=1) for each in by_end[end]]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
