"""An error of the user's own code in a few words: its type, its text, and the line that raised it."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.schemas.text import shorten_line

MAX_CHARACTERS = 300
"""Characters that are quoted of an error's own text."""
OUR_PACKAGE = Path(__file__).resolve().parents[1]
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
INSTALLED = {"site-packages", "dist-packages"}


def describe_error(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Describe an error as ``TypeError: its text (file, line n)``, at the user's line or the function's first."""
    text = shorten_line(str(error), MAX_CHARACTERS)
    return ": ".join(filter(None, (type(error).__name__, text))) + _describe_place(error, function)


def is_users_file(file: str) -> bool:
    """Return whether a file is the user's: not of Python, of an installed package or of the learner."""
    path = Path(file).resolve()
    is_librarys = path.is_relative_to(STANDARD_LIBRARY) or bool(INSTALLED & set(path.parts))
    return path.is_file() and not is_librarys and not path.is_relative_to(OUR_PACKAGE)


def _describe_place(error: BaseException, function: Callable[..., Any] | None) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    own_file = None if code is None else code.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        (frame.filename, frame.lineno)
        for frame in frames
        if frame.filename == own_file or is_users_file(frame.filename)
    ]
    if not lines and code is not None:
        lines = [(code.co_filename, code.co_firstlineno)]
    return f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else ""
