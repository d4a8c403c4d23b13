"""A user's own function, by ``module:function``."""

import importlib
from collections.abc import Callable
from typing import Any


def is_import_path(name: str) -> bool:
    """Whether a name is an import path rather than the name of something built in."""
    return ":" in name


def resolve_function(path: str, setting: str) -> Callable[..., Any]:
    """The function at ``module:function``; raises ValueError with a sentence that names the setting."""
    module, _, function = path.partition(":")
    try:
        function_at_path = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting}: {path!r} cannot be imported: {error}") from error
    if not callable(function_at_path):
        raise ValueError(f"{setting}: {path!r} is not a function")
    return function_at_path  # type: ignore[no-any-return]
