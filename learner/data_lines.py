"""Lines of a file to learn from: JSON objects, or rows of a table."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lightningbus.tasks.task_loading import open_lines, reject_repeated
from lightningbus.tasks.task_source import TaskSource
from lightningbus.tasks.task_tables import MapValue, is_table, read_rows

T = TypeVar("T")


Line = tuple[int, dict[str, Any]]
"""Number from 1 and object of a line of a file, or of a row of a table."""


def read_lines(path: Path) -> Iterator[Line]:
    """Read the objects of a file of JSON lines, or the rows of a table; raise ValueError with a sentence."""
    source = TaskSource(path=str(path))
    try:
        if is_table(source):
            try:
                for number, row in enumerate(read_rows(source), 1):
                    yield number, {name: _without_nulls(value) for name, value in row.items()}
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            return
        with open_lines(path) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, _read_object(path, number, text)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
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


def _without_nulls(value: Any) -> Any:
    """Leave out null fields of records: a column of a table gives all its records the same fields."""
    if isinstance(value, Mapping):
        has_own = isinstance(value, MapValue)
        return {name: _without_nulls(field) for name, field in value.items() if has_own or field is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _read_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=reject_repeated)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number} is no JSON object")
    return value
