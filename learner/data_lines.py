"""Lines of a file to learn from: JSON objects, or rows of Parquet."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightningbus.tasks.task_source import TaskSource
from lightningbus.tasks.task_tables import read_rows


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a file of JSON lines, or the rows of a Parquet file; raise ValueError with a sentence."""
    try:
        if path.suffix == ".parquet":
            try:
                for row in read_rows(TaskSource(path=str(path))):
                    yield dict(row)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            return
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _read_object(path, number, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text") from error


def _read_object(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number} is no JSON object")
    return value
