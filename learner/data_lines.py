"""Lines of a file to learn from: JSON objects, or rows of Parquet."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lightningbus.tasks.task_source import TaskSource
from lightningbus.tasks.task_tables import read_rows

T = TypeVar("T")


Line = tuple[int, dict[str, Any]]
"""Number from 1 and object of a line of a file, or of a row of a table."""


def read_lines(path: Path) -> Iterator[Line]:
    """Read the objects of a file of JSON lines, or the rows of a Parquet file; raise ValueError with a sentence."""
    try:
        if path.suffix == ".parquet":
            try:
                for number, row in enumerate(read_rows(TaskSource(path=str(path))), 1):
                    yield number, dict(row)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            return
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, _read_object(path, number, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text") from error


def build_each(path: Path, lines: Iterable[Line], build: Callable[[int, dict[str, Any]], T]) -> list[T]:
    """Return what ``build`` makes of each number and line; raise ValueError that names file and line."""
    built = []
    for number, line in lines:
        try:
            built.append(build(number, line))
        except Exception as error:  # a chat template is a program, and raises what it likes
            raise ValueError(f"{path}, line {number}: {error}") from error
    return built


def _read_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number} is no JSON object")
    return value
