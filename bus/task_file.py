"""Task files: a JSON object a line."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from common.name_suggestions import suggest_name
from schemas.base import Labels
from schemas.codec import MAX_BYTES

MAX_INPUT_BYTES = MAX_BYTES - 64 * 1024
"""Of a task's input: the rest of the message, and the record of it, need room too."""
MAX_ID_CHARACTERS = 128
KEYS = ("id", "input", "labels")


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the line and says why."""


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One line of a task file: ``{"id": "...", "input": any JSON, "labels": {"difficulty": "hard"}}``."""

    id: str
    input: Any
    labels: dict[str, str] = field(default_factory=dict)


def load_tasks(path: Path) -> list[TaskInput]:
    """All tasks of a JSONL file; raises `TaskFileError` at the first line that is not one, before any is used.

    ``id`` may be left out: it is then the line number. So may ``labels``. Whatever is returned can be published.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # and nothing else: a text may hold other line ends
    except (OSError, ValueError) as error:
        raise TaskFileError(f"{path} cannot be read: {error}") from error
    inputs: dict[str, TaskInput] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = parse_task_line(line, number)
        except ValueError as error:
            raise TaskFileError(f"{path} line {number}: {error}") from error
        if task.id in inputs:
            raise TaskFileError(f"{path} line {number}: id {task.id!r} stands twice")
        inputs[task.id] = task
    if not inputs:
        raise TaskFileError(f"{path} holds no task")
    return list(inputs.values())


def parse_task_line(line: str, number: int) -> TaskInput:
    """The problem on a line; raises ValueError saying why it is none, or why it could not be published."""
    try:
        fields = json.loads(line, parse_constant=_reject_number, parse_float=_parse_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict) or "input" not in fields:
        raise ValueError('it is not a task, which needs the form {"id": "...", "input": ...}')
    for key in fields:
        if key not in KEYS:
            raise ValueError(f"unknown key {key!r}: {suggest_name(key, KEYS)}")
    id = fields.get("id", number)
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


def _reject_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number
