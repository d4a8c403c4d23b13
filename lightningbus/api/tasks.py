"""Tasks of a notebook: a list, a DataFrame, a datasets.Dataset, or a file for `lightningbus.tasks.task_loading`."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lightningbus.run.run_directory.directory import INPUTS
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import TaskInput, load_tasks, parse_json_object, parse_task
from lightningbus.tasks.task_source import TaskSource, parse_task_source
from lightningbus.tasks.task_tables import map_row

Tasks: TypeAlias = str | os.PathLike[str] | TaskSource | Mapping[str, Any] | Iterable[Any]
"""A path, ``hf:NAME``, a mapping with ``path`` and a map of columns as in a run file, or rows of tasks or inputs."""
ROWS = TaskSource(path="rows")
"""Source of a row: a table without a map of columns."""


def read_tasks(tasks: Tasks) -> list[TaskInput]:
    """Read all tasks; raises `TaskFileError` at the first that is not one, before any is used.

    A row with ``id``, ``input`` and ``labels`` only is a task. Any other mapping is an input, whose id is its ``id`` if
    it has one. Anything else is an input too. Without an id it is the label of the index of a DataFrame or Series, as
    text, else the position, from 1.
    """
    if (source := _as_source(tasks)) is not None:
        return load_tasks(source)
    read: dict[str, TaskInput] = {}
    is_typed = hasattr(tasks, "features")  # a datasets.Dataset
    for number, (label, row) in enumerate(_label_rows(tasks), start=1):
        try:
            task = parse_task(_fields(row, is_typed), number if label is None else label)
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskFileError(f"task {number}: {error}") from error
        if task.id in read:
            advice = (
                "" if task.id != label else "; ids are labels of the index, which reset_index(drop=True) numbers anew"
            )
            raise TaskFileError(f"task {number}: id {task.id!r} stands twice{advice}")
        read[task.id] = task
    if not read:
        raise TaskFileError("there are no tasks: give at least one")
    return list(read.values())


def save_tasks(tasks: Tasks, runs: Path, argument: str = "tasks") -> str | dict[str, Any]:
    """Return tasks as a run file names them: their own source, or a file below ``runs`` named after its content.

    Raises `TaskFileError` as `read_tasks`, with the name of the argument.
    """
    if (source := _as_source(tasks)) is not None:
        fields = source.model_dump(exclude_defaults=True)
        return source.path if fields.keys() == {"path"} else fields
    try:
        read = read_tasks(tasks)
    except TaskFileError as error:
        raise TaskFileError(f"{argument}: {error}") from error
    content = "".join(
        json.dumps({"id": task.id, "input": task.input, "labels": task.labels}, ensure_ascii=False) + "\n"
        for task in read
    ).encode()
    path = input_directory(runs) / f"tasks-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    path.write_bytes(content)
    return str(path)


def save_evaluation_tasks(section: Any, runs: Path) -> Any:
    """Return the section ``eval`` with the tasks of itself and its suites as a run file names them, see `save_tasks`.

    A section that is no mapping stays as it is. Raises `TaskFileError` that names the setting.
    """
    if not isinstance(section, Mapping):
        return section
    saved = {**section, **_save_rows(section, runs, "eval.tasks")}
    if isinstance(suites := section.get("suites"), list | tuple):
        saved["suites"] = [
            {**suite, **_save_rows(suite, runs, f"eval.suites.{number}.tasks")} if isinstance(suite, Mapping) else suite
            for number, suite in enumerate(suites)
        ]
    return saved


def _save_rows(section: Mapping[str, Any], runs: Path, name: str) -> dict[str, Any]:
    """Save the tasks of a section that are rows; returns the changed field, or nothing."""
    tasks = section.get("tasks")
    if tasks is None or isinstance(tasks, str | os.PathLike | Mapping | TaskSource):
        return {}
    return {"tasks": save_tasks(tasks, runs, name)}


def input_directory(runs: Path) -> Path:
    """Make the directory of a notebook's tasks and functions, for their owner alone."""
    directory = runs.absolute() / INPUTS
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _as_source(tasks: Tasks) -> TaskSource | None:
    """Return the source that tasks name; None: they are rows."""
    if isinstance(tasks, TaskSource):
        return tasks
    if isinstance(tasks, str | os.PathLike):
        return TaskSource(path=os.fspath(tasks))
    if not isinstance(tasks, Mapping):
        return None
    if "path" not in tasks:
        raise TaskFileError("the tasks are one mapping: give a list of them, or {'path': ..., 'columns': {...}}")
    try:
        source: TaskSource = parse_task_source(tasks)
    except ValueError as error:
        raise TaskFileError(f"tasks: {error}") from error
    return source


def _label_rows(tasks: Any) -> Iterator[tuple[str | None, Any]]:
    """Iterate the rows, each with its label in the index of a DataFrame or Series; None: there is no index.

    A missing value is null. A whole number has no point: an index of floats is one of integers that met a missing one.
    """
    is_frame = hasattr(tasks, "itertuples") and hasattr(tasks, "to_dict")
    if not (is_frame or (hasattr(tasks, "items") and hasattr(tasks, "to_frame"))):
        return ((None, row) for row in tasks)
    filled = tasks.astype(object).where(tasks.notna(), None)
    rows = filled.to_dict("records") if is_frame else filled.tolist()
    return zip(map(_format_label, tasks.index.tolist()), rows, strict=True)


def _format_label(label: Any) -> str:
    return str(int(label) if isinstance(label, float) and label.is_integer() else label)


def _fields(row: Any, is_typed: bool) -> dict[str, Any]:
    """Return the fields of a task; values become what JSON makes of them."""
    plain = parse_json_object(json.dumps({"row": row}, default=_to_json))["row"]
    return map_row(plain, ROWS, is_typed) if isinstance(plain, dict) else {"input": plain}


def _to_json(value: Any) -> Any:
    """Convert numbers and arrays of NumPy, and times, to values of JSON."""
    for convert in ("tolist", "isoformat"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"{type(value).__name__} cannot be part of a task")
