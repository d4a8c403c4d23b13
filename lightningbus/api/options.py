"""Settings as `inspect.signature`, `help` and completion in Jupyter show them: by name, type, default and meaning.

Editors read the annotations. A running Python does not: to it, keyword arguments of a `typing.TypedDict` are one
``**options``, and a pydantic class has no meaning of its fields.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from lightningbus.api.settings import PATHS
from lightningbus.run.settings.run_file import ROLE_SECTIONS, RunSettings

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def with_options(kind: type) -> Callable[[Decorated], Decorated]:
    """Make a decorator for functions with ``**options`` of a TypedDict, which adds its keys to signature and docstring.

    A key without a value has the default ``...``.
    """

    def decorate(function: Decorated) -> Decorated:
        signature = inspect.signature(function)
        others = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=annotation)
            for name, annotation in kind.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*others, *options])  # type: ignore[attr-defined]
        function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n{_list_meanings(describe_options(kind))}"
        return function

    return decorate


def describe_options(kind: type) -> dict[str, str]:
    """Return the meaning of each key of a TypedDict of options, as the settings page has it."""
    return {name: _describe_option(name) for name in kind.__annotations__}


def document_fields(settings: type[BaseModel]) -> None:
    """Add the meaning of each field to a settings class's docstring, and its types without validators to its signature.

    Fields that it has from another class are among them.
    """
    settings.__doc__ = f"{inspect.getdoc(settings)}\n\nFields:\n{_list_meanings(dict(_describe_fields(settings)))}"
    types = get_type_hints(settings)  # without the validators
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_find_default(field), annotation=types[name])
        for name, field in settings.model_fields.items()
    ]
    settings.__signature__ = inspect.Signature(parameters)


def _describe_option(name: str) -> str:
    """Return the meaning of a field of a run file, or of the section of that name."""
    if name not in PATHS:
        model = ROLE_SECTIONS[name][1] if name in ROLE_SECTIONS else _find_model(RunSettings.model_fields[name])
        return f"section of a run file: {_first_sentence(model)}"
    *sections, last = PATHS[name]
    model = RunSettings
    for section in sections:
        model = _find_model(model.model_fields[section])
    return str(model.model_fields[last].description)


def _describe_fields(settings: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in settings.model_fields.items():
        default = _find_default(field)
        ending = "" if default is inspect.Parameter.empty or default is ... else f" (default: {default!r})"
        meaning = field.description or _first_sentence(_find_model(field))
        yield name, f"{meaning}{ending}"


def _find_default(field: Any) -> Any:
    if field.is_required():
        return inspect.Parameter.empty
    return ... if field.default is PydanticUndefined or isinstance(field.default, BaseModel) else field.default


def _find_model(field: Any) -> type[BaseModel]:
    """Find the settings class in the type of a field; raises ValueError if there is none."""
    waiting = [field.annotation]
    while waiting:
        kind = waiting.pop()
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return kind
        waiting += get_args(kind)
    raise ValueError(f"{field.annotation} holds no settings class")


def _first_sentence(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").partition("\n")[0]


def _list_meanings(meanings: dict[str, str]) -> str:
    return "\n".join(f"    {name}: {meaning}" for name, meaning in meanings.items())
