"""Tasks: read from a file, and the span that opens a rollout's trace when one is published."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from common.name_suggestions import name_nearest
from schemas import ids
from schemas.codec import MAX_BYTES, encode
from schemas.semconv import attributes
from schemas.spans import Span
from schemas.tasks import Task, TaskRecord

RECORD_BYTES = 500_000
"""Of one record of tasks that were published together."""
MAX_INPUT_BYTES = MAX_BYTES - 64 * 1024
"""Of a task's input: the rest of the message, and the record of it, need room too."""
MAX_ID_CHARACTERS = 128
KEYS = ("id", "input")


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the line and says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of a task file: ``{"id": "...", "input": any JSON}``."""

    id: str
    input: Any


def read_problems(path: Path) -> list[Problem]:
    """All problems of a JSONL file; raises `TaskFileError` at the first line that is not one, before any is used.

    ``id`` may be left out: it is then the line number. Whatever is returned can be published.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # and nothing else: a text may hold other line ends
    except (OSError, ValueError) as error:
        raise TaskFileError(f"{path} cannot be read: {error}") from error
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            problem = parse_problem(line, number)
        except ValueError as error:
            raise TaskFileError(f"{path} line {number}: {error}") from error
        if problem.id in problems:
            raise TaskFileError(f"{path} line {number}: id {problem.id!r} stands twice")
        problems[problem.id] = problem
    if not problems:
        raise TaskFileError(f"{path} holds no task")
    return list(problems.values())


def parse_problem(line: str, number: int) -> Problem:
    """The problem on a line; raises ValueError saying why it is none, or why it could not be published."""
    try:
        fields = json.loads(line, parse_constant=_refuse_number, parse_float=_parse_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict) or "input" not in fields:
        raise ValueError('it is not a task, which needs the form {"id": "...", "input": ...}')
    for key in fields:
        if key not in KEYS:
            raise ValueError(f"unknown key {key!r}: {name_nearest(key, KEYS)}")
    id = fields.get("id", number)
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"id is text or an integer, not {json.dumps(id)[:40]}")
    _check_id(str(id))
    try:
        size = len(msgspec.msgpack.encode(fields["input"]))
    except (ValueError, OverflowError, RecursionError) as error:
        reason = "text with half a character (a lone surrogate)" if isinstance(error, UnicodeError) else error
        raise ValueError(f"its input cannot be sent: {reason}") from error
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"its input is {size:,} bytes as MessagePack; the limit is {MAX_INPUT_BYTES:,}")
    return Problem(str(id), fields["input"])


def _check_id(id: str) -> None:
    if not 1 <= len(id) <= MAX_ID_CHARACTERS:
        raise ValueError(f"an id has 1 to {MAX_ID_CHARACTERS} characters, this one {len(id)}")
    if not id.isprintable() or id != id.strip():
        raise ValueError(f"id {id!r}: an id has printable characters only, and no space at its ends")


def _refuse_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


def together(published: Iterable[TaskRecord]) -> Iterator[list[TaskRecord]]:
    """In lots that fit a message; a task is within its own limit, so a lot of one always does."""
    lot: list[TaskRecord] = []
    size = 0
    for one in published:
        own = len(encode(one))
        if lot and size + own > RECORD_BYTES:
            yield lot
            lot, size = [], 0
        lot.append(one)
        size += own
    if lot:
        yield lot


def foreign_record(task: Task, subject: str, traceparent: str, published_ns: int) -> TaskRecord | None:
    """The record of a task whose publisher wrote none; None if it did, as its ``traceparent`` shows.

    Another publisher's own trace becomes a link of the rollout's first span.
    """
    rollout = ids.rollout_id(task.id, task.sample_index)
    if traceparent == ids.task_traceparent(rollout):
        return None
    span = producer_span(task, subject, published_ns, published_ns)
    trace_id, span_id = ids.parse_trace_id(traceparent), ids.parse_span_id(traceparent)
    if span_id:
        span = replace(span, links=({"trace_id": trace_id, "span_id": span_id},))
    return TaskRecord(task=task, rollout_id=rollout, span=span)


def producer_span(task: Task, subject: str, start_ns: int, end_ns: int) -> Span:
    """The PRODUCER span of one published sample, by OpenTelemetry's messaging conventions."""
    rollout = ids.rollout_id(task.id, task.sample_index)
    return Span(
        trace_id=ids.trace_id(rollout),
        span_id=ids.publish_span_id(rollout),
        name=f"send {subject}",
        kind="producer",
        start_ns=start_ns,
        end_ns=end_ns,
        status="ok",
        scope="lightningbus.bus",
        attributes={
            attributes.MESSAGING_SYSTEM: "nats",
            attributes.MESSAGING_OPERATION: "send",
            attributes.MESSAGING_DESTINATION: subject,
            attributes.MESSAGE_ID: ids.task_msg_id(rollout),
            attributes.RUN: task.run_id,
            attributes.TASK: task.id,
            attributes.ROLLOUT: rollout,
        },
    )
