"""Tasks: read from a file, and the span that opens a rollout's trace when one is published."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from schemas import attributes, identity
from schemas.codec import encode
from schemas.events import Span, Task, TaskPublished

RECORD_BYTES = 500_000
"""Of one record of tasks that were published together."""


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the line and says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of a task file: ``{"id": "...", "input": any JSON}``."""

    id: str
    input: Any


def read_problems(path: Path) -> list[Problem]:
    """All problems of a JSONL file; raises `TaskFileError` at the first line that is not one, before any is used.

    ``id`` may be left out: it is then the line number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path} cannot be read: {error}") from error
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        problem = _problem(path, number, line)
        if problem.id in problems:
            raise TaskFileError(f"{path} line {number}: id {problem.id!r} stands twice")
        problems[problem.id] = problem
    if not problems:
        raise TaskFileError(f"{path} holds no task")
    return list(problems.values())


def _problem(path: Path, number: int, line: str) -> Problem:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise TaskFileError(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(fields, dict) or "input" not in fields:
        raise TaskFileError(f'{path} line {number} is not a task: it needs the form {{"id": "...", "input": ...}}')
    id = str(fields.get("id", number))
    if not 1 <= len(id) <= 128:
        raise TaskFileError(f"{path} line {number}: an id has 1 to 128 characters, this one {len(id)}")
    return Problem(id, fields["input"])


def together(published: Iterable[TaskPublished]) -> Iterator[list[TaskPublished]]:
    """In lots that fit a message; a task is within its own limit, so a lot of one always does."""
    lot: list[TaskPublished] = []
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


def foreign_record(task: Task, subject: str, traceparent: str, published_ns: int) -> TaskPublished | None:
    """The record of a task whose publisher wrote none; None if it did, as its ``traceparent`` shows.

    Another publisher's own trace becomes a link of the rollout's first span.
    """
    rollout = identity.rollout_id(task.id, task.sample)
    if traceparent == identity.task_traceparent(rollout):
        return None
    span = producer_span(task, subject, published_ns, published_ns)
    trace_id, span_id = identity.trace_of(traceparent), identity.span_of(traceparent)
    if span_id:
        span = replace(span, links=({"trace_id": trace_id, "span_id": span_id},))
    return TaskPublished(task=task, rollout=rollout, span=span)


def producer_span(task: Task, subject: str, start_ns: int, end_ns: int) -> Span:
    """The PRODUCER span of one published sample, by OpenTelemetry's messaging conventions."""
    rollout = identity.rollout_id(task.id, task.sample)
    return Span(
        trace_id=identity.trace_id(rollout),
        span_id=identity.publish_span_id(rollout),
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
            attributes.MESSAGE_ID: identity.task_msg_id(rollout),
            attributes.RUN: task.run,
            attributes.TASK: task.id,
            attributes.ROLLOUT: rollout,
        },
    )
