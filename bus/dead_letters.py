"""The dead letter queue: keeps, lists, replays and deletes messages that cannot be processed."""

import logging
import time
from collections.abc import AsyncIterator, Mapping

from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.message import Message
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError, EncodeError, decode, encode, schema_of
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Alert
from lightningbus.schemas.grading import GradingRequest, RolloutGraded
from lightningbus.schemas.ids import TRACEPARENT
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task, TaskBatchRecord
from lightningbus.schemas.text import shorten
from lightningbus.schemas.training import TaskDecision, TrainingStep

log = logging.getLogger(__name__)

REPLAY_SECONDS = 30.0
MAX_REASON = 2000
"""Characters of a dead letter's reason, which may repeat what a stranger sent."""
TYPES: Mapping[str, Mapping[type[Event], str]] = {
    subjects.TASKS: {Task: ""},  # its mode and agent give the subject
    subjects.TRAIN_ROLLOUTS: {SpanBatch: subjects.TRAIN_ROLLOUT},
    subjects.EVAL_ROLLOUTS: {SpanBatch: subjects.EVAL_ROLLOUT},
    subjects.EVENTS: {
        TaskBatchRecord: subjects.TASK_PUBLISHED,
        TrainingStep: subjects.TRAINING_STEP,
        RolloutGraded: subjects.ROLLOUT_GRADED,
        RolloutReviewed: subjects.ROLLOUT_REVIEWED,
        TaskDecision: subjects.TASK_DECIDED,
    },
    subjects.GRADING: {GradingRequest: ""},  # its mode gives the subject
    subjects.ALERTS: {Alert: subjects.ALERT},
}
"""Replayable events by stream, with their subjects. Weights cannot be replayed: the learner publishes them again."""


class DeadLetterQueue:
    """Dead letters, by their sequence in the stream DLQ."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def add(self, message: Message, reason: str) -> None:
        """Keep an unprocessable message as a dead letter, then never deliver it again.

        A letter that would be too large is kept without headers and payload.
        """
        reason = shorten(reason, MAX_REASON)
        letter = DeadLetter(
            stream=message.stream,
            subject=message.subject,
            sequence=message.sequence,
            num_delivered=message.num_delivered,
            reason=reason,
            headers=message.headers,
            payload=message.data,
            dead_lettered_at_ns=time.time_ns(),
        )
        try:
            encode(letter)
        except EncodeError:
            reason = f"{reason}; its {len(message.data)} bytes were too many to keep"
            letter = replace(letter, reason=reason, headers={}, payload=b"")
        log.warning("dead letter %s/%d: %s", message.stream, message.sequence, reason)
        subject, msg_id = subjects.dlq(message.stream), f"dead:{message.stream}:{message.sequence}"
        await self._bus.publish(subject, letter, msg_id=msg_id)
        metrics.dead_letters.labels(message.stream).inc()
        await message.term(sync=True)

    async def list_letters(self) -> AsyncIterator[tuple[int, DeadLetter]]:
        """Yield every readable letter, oldest first, one at a time: read-only roles may have no consumer."""
        sequence = 1
        while True:
            try:
                message = await self._bus.js.get_msg(subjects.DLQ, sequence, subjects.ALL_DLQ, next=True)
            except NotFoundError:
                return
            sequence = int(message.seq or 0) + 1
            try:
                letter = read_letter(message)
            except DecodeError as error:
                log.warning("dead letter %d cannot be read, and is left out: %s", sequence - 1, error)
                continue
            yield sequence - 1, letter

    async def get(self, sequence: int) -> DeadLetter:
        """Return one letter; raise `BusError` if no readable one has that number."""
        try:
            return read_letter(await self._message(sequence))
        except DecodeError as error:
            raise BusError(f"there is no dead letter {sequence} that can be read: {error}") from error

    async def replay(self, sequence: int) -> None:
        """Send a letter's message to its stream again, then drop the letter; raise `BusError` if it fits none.

        A task keeps its count of attempts, so that new results differ from older ones.
        """
        letter = await self.get(sequence)
        try:
            subject, payload, headers = build_replay(letter)
        except DecodeError as error:
            raise BusError(f"dead letter {sequence} is not sent again: {error}") from error
        headers[subjects.MSG_ID_HEADER] = f"replay:{sequence}"
        await self._bus.publish_bytes(subject, payload, headers, REPLAY_SECONDS)
        await self.delete(sequence)

    async def delete(self, sequence: int) -> None:
        """Delete a letter; raise `BusError` if none has that number."""
        await self._message(sequence)
        await self._bus.js.delete_msg(subjects.DLQ, sequence)

    async def _message(self, sequence: int) -> RawStreamMsg:
        try:
            return await self._bus.js.get_msg(subjects.DLQ, sequence)
        except NotFoundError:
            raise BusError(f"there is no dead letter {sequence}: see `lightningbus dlq list`") from None


def read_letter(message: RawStreamMsg | Msg) -> DeadLetter:
    """Decode a letter; raise `DecodeError`, also when it names another stream than its subject does.

    A role that may write letters of one stream may not write those of another.
    """
    letter = decode(DeadLetter, message.data or b"")
    if message.subject != subjects.dlq(letter.stream):
        raise DecodeError(f"a letter of {letter.stream} does not come on {message.subject}")
    return letter


def build_replay(letter: DeadLetter) -> tuple[str, bytes, dict[str, str]]:
    """Build subject, payload and headers of a letter's message for another publish.

    Only its trace is taken from the letter's own headers, which its writer controls. Raises `DecodeError` when the
    message is of no type that its stream takes.
    """
    types = TYPES.get(letter.stream)
    if types is None:
        raise DecodeError(f"letters of {letter.stream} are not sent again, only those of {', '.join(TYPES)}")
    event = _decode_any(letter.payload, types)
    subject, payload = types[type(event)], letter.payload
    if isinstance(event, Task):
        subject = subjects.task(event.mode, event.agent)
        payload = encode(replace(event, prior_attempts=event.prior_attempts + letter.num_delivered))
    if isinstance(event, GradingRequest):  # its attempt has ended: what comes now is another grade
        subject = subjects.grading(event.ending.mode)
        payload = encode(replace(event, is_replay=True))
    headers = {subjects.SCHEMA_HEADER: schema_of(event)}
    trace = letter.headers.get(subjects.TRACE_HEADER, "")
    if TRACEPARENT.fullmatch(trace):
        headers[subjects.TRACE_HEADER] = trace
    return subject, payload, headers


def _decode_any(payload: bytes, types: Mapping[type[Event], str]) -> Event:
    problems = []
    for kind in types:
        try:
            return decode(kind, payload)
        except DecodeError as error:
            problems.append(str(error))
    raise DecodeError(f"it holds no {' or '.join(kind.__name__ for kind in types)} ({'; '.join(problems)})")
