"""A user's own function, by ``module:function``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.learner.settings.user_code import describe_error


def is_import_path(name: str) -> bool:
    """Return whether a name is an import path rather than that of a built-in."""
    return ":" in name


def resolve_function(path: str, setting: str) -> Callable[..., Any]:
    """Import the function at ``module:function``; raise ValueError with a sentence that names the setting.

    The module may lie in the working directory.
    """
    add_working_directory()
    module, _, function = path.partition(":")
    try:
        function_at_path = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{setting}: {path!r} cannot be imported: {error}") from error
    except Exception as error:  # the module's own code raised it
        raise ValueError(f"{setting}: {path!r} cannot be imported: {describe_error(error)}") from error
    if not callable(function_at_path):
        raise ValueError(f"{setting}: {path!r} is not a function")
    return function_at_path  # type: ignore[no-any-return]


def add_working_directory() -> None:
    """Make the modules of the working directory importable.

    It comes last: a file of the user's may have the name of an installed package.
    """
    directory = str(Path.cwd())
    if not {"", directory} & set(sys.path):
        sys.path.append(directory)
