"""Publishes tasks with the record and the PRODUCER span that each of them owes the store."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from lightningbus.bus.client import PUBLISH_SECONDS, Bus
from lightningbus.bus.errors import DuplicateMessageError
from lightningbus.bus.jetstream.publish_batch import OutgoingMessage, encode_event
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import EncodeError, encode
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord

MAX_RECORD_BYTES = 500_000
"""Largest record of tasks that were published together."""


class TaskPublisher:
    """Publishes tasks, then the record of those that the bus has stored, from which the store makes its rows."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.last_sequence = 0
        """Stream sequence of the last new task of the last call; 0: it had none."""

    async def publish_task(self, task: Task, timeout: float = PUBLISH_SECONDS) -> None:
        """Publish one task; see `publish_tasks`."""
        await self.publish_tasks([task], timeout)

    async def publish_tasks(self, tasks: Sequence[Task], timeout: float = PUBLISH_SECONDS, nonce: str = "") -> int:
        """Publish tasks, then the record of those that the bus has stored; return the number of new ones.

        With a ``nonce`` the broker accepts tasks again that it was sent without it, or with another. Raises the first
        error after the record, as `Bus.publish`.
        """
        started_ns = time.time_ns()
        encoded = [_encode_task(task, nonce) for task in tasks]
        messages = [message for message in encoded if isinstance(message, OutgoingMessage)]
        replies = iter(await self._bus.publish_batch(messages, timeout, unique=True))
        results = [next(replies) if isinstance(message, OutgoingMessage) else message for message in encoded]
        ended_ns = time.time_ns()
        self.last_sequence = next((each for each in reversed(results) if isinstance(each, int)), 0)
        is_there = [isinstance(result, int | DuplicateMessageError) for result in results]
        records = [build_record(task, started_ns, ended_ns) for task in itertools.compress(tasks, is_there)]
        await self.record_tasks(records, timeout, nonce)
        for result in results:
            if not isinstance(result, int | DuplicateMessageError):
                raise result
        return sum(isinstance(result, int) for result in results)

    async def record_tasks(
        self, records: Sequence[TaskRecord], timeout: float = PUBLISH_SECONDS, nonce: str = ""
    ) -> None:
        """Publish the record of published tasks; raises as `Bus.publish`."""
        for chunk in chunk_by_size(records):
            msg_id = ids.tasks_msg_id(record.rollout_id for record in chunk) + nonce
            event = TaskBatchRecord(tasks=tuple(chunk))
            await self._bus.publish(subjects.TASK_PUBLISHED, event, msg_id=msg_id, timeout=timeout)


def build_record(task: Task, started_ns: int, ended_ns: int) -> TaskRecord:
    """Build the record of a task that was published between two times."""
    span = build_producer_span(task, subjects.task(task.mode, task.agent), started_ns, ended_ns)
    return TaskRecord(task=task, rollout_id=ids.rollout_id(task.id, task.sample_index), span=span)


def _encode_task(task: Task, nonce: str) -> OutgoingMessage | EncodeError:
    rollout_id = ids.rollout_id(task.id, task.sample_index)
    msg_id, traceparent = ids.task_msg_id(rollout_id) + nonce, ids.task_traceparent(rollout_id)
    try:
        return encode_event(subjects.task(task.mode, task.agent), task, msg_id, traceparent)
    except EncodeError as error:
        return error


def chunk_by_size(records: Iterable[TaskRecord]) -> Iterator[list[TaskRecord]]:
    """Split records into chunks that fit a message; a task is within its own limit, so a chunk of one always fits."""
    chunk: list[TaskRecord] = []
    chunk_bytes = 0
    for record in records:
        num_bytes = len(encode(record))
        if chunk and chunk_bytes + num_bytes > MAX_RECORD_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(record)
        chunk_bytes += num_bytes
    if chunk:
        yield chunk


def build_foreign_record(task: Task, subject: str, traceparent: str, published_ns: int) -> TaskRecord | None:
    """Build the record of a task whose publisher wrote none; None if it did, as its ``traceparent`` shows.

    Another publisher's own trace becomes a link of the rollout's first span.
    """
    rollout = ids.rollout_id(task.id, task.sample_index)
    if traceparent == ids.task_traceparent(rollout):
        return None
    span = build_producer_span(task, subject, published_ns, published_ns)
    trace_id, span_id = ids.parse_trace_id(traceparent), ids.parse_span_id(traceparent)
    if span_id:
        span = replace(span, links=({"trace_id": trace_id, "span_id": span_id},))
    return TaskRecord(task=task, rollout_id=rollout, span=span)


def build_producer_span(task: Task, subject: str, start_ns: int, end_ns: int) -> Span:
    """Build the PRODUCER span of one published sample, by OpenTelemetry's messaging conventions."""
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
