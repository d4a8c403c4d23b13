"""Tasks of a notebook, as `bus.task_file` has them: a list, a DataFrame or a datasets.Dataset instead of a file."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from bus.task_file import KEYS, TaskFileError, TaskInput, load_tasks, parse_task_line

TaskSource: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A path of a task file, or tasks: ``{"id": ..., "input": ..., "labels": ...}`` each, or inputs alone."""
INPUTS = ".inputs"
"""Below the directory of runs: what a notebook passes to them. No run has such a name."""


def read_tasks(tasks: TaskSource) -> list[TaskInput]:
    """All tasks of a source; raises `TaskFileError` at the first that is not one, before any is used.

    A mapping with no key but ``id``, ``input`` and ``labels``, and with an ``input``, is a task. Anything else is the
    input of a task whose id is its position, from 1. A DataFrame and a dataset are read as one mapping per row.
    """
    if isinstance(tasks, str | os.PathLike):
        return load_tasks(Path(tasks))
    read: dict[str, TaskInput] = {}
    for number, line in enumerate(_lines(tasks), start=1):
        try:
            task = parse_task_line(line, number)
        except ValueError as error:
            raise TaskFileError(f"task {number}: {error}") from error
        if task.id in read:
            raise TaskFileError(f"task {number}: id {task.id!r} stands twice")
        read[task.id] = task
    if not read:
        raise TaskFileError("there are no tasks: give at least one")
    return list(read.values())


def save_tasks(tasks: TaskSource, runs: Path) -> Path:
    """A task file that holds them: their own, or one below ``runs`` that is named after its content."""
    if isinstance(tasks, str | os.PathLike):
        return Path(tasks)
    lines = [
        json.dumps({"id": task.id, "input": task.input, "labels": task.labels}, ensure_ascii=False) + "\n"
        for task in read_tasks(tasks)
    ]
    content = "".join(lines).encode()
    path = input_directory(runs) / f"tasks-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    path.write_bytes(content)
    return path


def input_directory(runs: Path) -> Path:
    """Where a notebook's tasks and functions lie, for their owner alone."""
    directory = runs.absolute() / INPUTS
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _lines(tasks: Iterable[Any]) -> Iterator[str]:
    """Each task as a line of a task file."""
    if isinstance(tasks, dict):
        raise TaskFileError("the tasks are one mapping: give a list of them")
    convert = getattr(tasks, "to_dict", None) if hasattr(tasks, "itertuples") else None  # a DataFrame's
    records = convert("records") if convert is not None else tasks
    for number, record in enumerate(records, start=1):
        fields = {"input": record}
        if isinstance(record, dict) and "input" in record and not record.keys() - set(KEYS):
            fields = {name: value for name, value in record.items() if name == "input" or value is not None}
        try:
            yield json.dumps(fields, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskFileError(f"task {number} is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy, and times, as JSON has them."""
    for convert in ("tolist", "isoformat"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"{type(value).__name__} cannot be part of a task")
