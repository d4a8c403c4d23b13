"""Tasks of files and data sets: a JSON object a line, or a row of a table."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import msgspec

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.schemas.base import Labels
from lightningbus.schemas.codec import MAX_BYTES
from lightningbus.tasks.benchmark_rows import read_row
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_source import SET_LABEL, SET_SEPARATOR, NamedTaskSource, TaskSource, as_task_source
from lightningbus.tasks.task_tables import TASK_KEYS as KEYS
from lightningbus.tasks.task_tables import is_table, map_row, read_rows

MAX_INPUT_BYTES = MAX_BYTES - 64 * 1024
"""Largest input of a task: the rest of the message, and its record, need room too."""
MAX_ID_CHARACTERS = 128
NO_TASK = 'it is not a task, which needs the form {"id": "...", "input": ...}'


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One task of a file: ``{"id": "...", "input": any JSON, "labels": {"difficulty": "hard"}}``."""

    id: str
    input: Any
    labels: dict[str, str] = field(default_factory=dict)


def load_tasks(source: Path | str | TaskSource | Sequence[NamedTaskSource]) -> list[TaskInput]:
    """Load all tasks of a file, a data set or several sets; raise `TaskFileError` at the first invalid row.

    ``id`` may be left out: it is then the number of the line or the row, from 1. So may ``labels``. Every returned task
    can be published.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [_name_set(task, each) for each in source for task in load_tasks(as_task_source(each))]
    source = as_task_source(source)
    inputs: dict[str, TaskInput] = {}
    for where, task in _read_tasks(source):
        if task.id in inputs:
            raise TaskFileError(f"{source} {where}: id {task.id!r} stands twice")
        inputs[task.id] = task
    if not inputs:
        raise TaskFileError(f"{source} holds no task")
    return list(inputs.values())


def _name_set(task: TaskInput, source: NamedTaskSource) -> TaskInput:
    """Put the name of its set before a task's id and among its labels; raise `TaskFileError` if that is too long."""
    id, labels = f"{source.name}{SET_SEPARATOR}{task.id}", {**task.labels, SET_LABEL: source.name}
    try:
        _check_id(id)
        return TaskInput(id, task.input, _parse_labels(labels))
    except ValueError as error:
        raise TaskFileError(f"{source}: task {task.id!r} of set {source.name!r}: {error}") from error


def _read_tasks(source: TaskSource) -> Iterator[tuple[str, TaskInput]]:
    """Yield each task with its place in the file; raise `TaskFileError`."""
    is_rows = is_table(source)
    rows = read_rows(source) if is_rows else _read_lines(Path(source.path))
    answers = _read_answers(source)
    number = 0
    while True:
        try:
            row = next(rows, None)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            after = f" after row {number}" if is_rows and number else ""
            raise TaskFileError(f"{source} cannot be read{after}: {error}") from error
        if row is None:
            return
        number += 1
        where = f"{'row' if is_rows else 'line'} {number}"
        try:
            if isinstance(row, str):
                if not row.strip():
                    continue
                fields = parse_json_object(row)
            else:
                fields = dict(row)
            if source.benchmark is not None:
                fields = read_row(source.benchmark, fields, answers.get(fields.get("id")))
            elif is_rows or source.has_map:
                fields = map_row(fields, source, is_rows)
            yield where, parse_task(fields, number)
        except ValueError as error:
            raise TaskFileError(f"{source} {where}: {error}") from error


def _read_answers(source: TaskSource) -> dict[Any, Any]:
    """Read the answers of BFCL by id: they are in a file of the same name in the directory ``possible_answer``."""
    path = Path(source.path).parent / "possible_answer" / Path(source.path).name
    if source.benchmark != "bfcl" or not path.exists():
        return {}
    try:
        rows = map(parse_json_object, _read_lines(path))
        return {row["id"]: row["ground_truth"] for row in rows}
    except KeyError as error:
        raise TaskFileError(f"{path} has no answers of BFCL: a row lacks {error}") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TaskFileError(f"{path} has no answers of BFCL: {error}") from error


def _read_lines(path: Path) -> Iterator[str]:
    with open_lines(path) as file:
        yield from file


def open_lines(path: Path) -> TextIO:
    """Open a text file of lines, compressed by gzip or not, with or without a byte order mark."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig", newline="\n")  # no other line end: a text may contain those


def parse_json_object(line: str) -> dict[str, Any]:
    """Parse the fields on a line; raise ValueError with the reason if there are none."""
    try:
        fields = json.loads(
            line, parse_constant=_reject_number, parse_float=_parse_float, object_pairs_hook=reject_repeated
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(NO_TASK)
    return fields


def parse_task(fields: dict[str, Any], default_id: int | str) -> TaskInput:
    """Build the task of some fields; raise ValueError with the reason if it is invalid or could not be published."""
    if "input" not in fields:
        raise ValueError(NO_TASK)
    for key in fields:
        if key not in KEYS:
            raise ValueError(f"unknown key {key!r}: {suggest_name(key, KEYS)}")
    id = fields.get("id", default_id)
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"id is text or an integer, not {json.dumps(id)[:40]}")
    _check_id(str(id))
    labels = _parse_labels(fields.get("labels", {}))
    try:
        size = len(msgspec.msgpack.encode(fields["input"]))
    except (ValueError, OverflowError, RecursionError) as error:
        reason = "text with half a character (a lone surrogate)" if isinstance(error, UnicodeError) else error
        raise ValueError(f"its input cannot be sent: {reason}") from error
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"its input is {size:,} bytes as MessagePack; the limit is {MAX_INPUT_BYTES:,}")
    return TaskInput(str(id), fields["input"], labels)


def _parse_labels(labels: Any) -> dict[str, str]:
    if isinstance(labels, dict):
        labels = {name: text for name, text in labels.items() if text is not None}
    try:
        parsed = msgspec.convert(labels, Labels)
    except msgspec.ValidationError as error:
        raise ValueError(
            'labels need the form {"difficulty": "hard"}, 16 at most, with names of letters, digits, "_", "." and "-" '
            f"(64 at most) and text of 200 characters at most: {error}"
        ) from error
    for name, text in parsed.items():
        if not text.isprintable():
            raise ValueError(f"label {name!r} has characters that are not printable")
    return parsed


def _check_id(id: str) -> None:
    if not 1 <= len(id) <= MAX_ID_CHARACTERS:
        raise ValueError(f"an id has 1 to {MAX_ID_CHARACTERS} characters, this one {len(id)}")
    if not id.isprintable() or id != id.strip():
        raise ValueError(f"id {id!r}: an id has printable characters only, and no space at its ends")


def reject_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its fields; raise ValueError for a repeated key."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:80]!r} stands twice")
    return fields


def _reject_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number
