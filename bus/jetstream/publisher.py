"""Publish pipeline: many messages in flight, each with its own deadline, retried under the same message id.

nats-py's ``publish_async`` leaves a future pending for ever when the server answers with an error, so
acknowledgements are matched here, on an inbox of our own.
"""

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from lightningbus.bus.errors import (
    NO_STORAGE,
    BusError,
    CredentialsError,
    DuplicateMessageError,
    FencedError,
    PublishFailure,
    PublishTimeoutError,
    StorageFullError,
    StreamFullError,
    classify,
)
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.observability import metrics
from lightningbus.schemas.subjects import MSG_ID_HEADER

log = logging.getLogger(__name__)

MAX_PENDING_ACKS = 512
"""Unacknowledged messages at most; beyond it publishing waits."""
ATTEMPT_SECONDS = 5.0
"""Seconds that one attempt waits for its acknowledgement."""
RETRY_POLICY = RetryPolicy(0.05, 2.0)
"""First and longest pause between attempts; the pause is drawn from zero up to it."""

STORAGE = "storage of the server"
FULL = frozenset([PublishFailure.FULL, PublishFailure.NO_STORAGE])
"""Failures that end by themselves once somebody makes room."""


class PublishAck(NamedTuple):
    """The server's acknowledgement of a stored message."""

    sequence: int
    is_duplicate: bool
    """The stream had a message of this id already."""


Reply = PublishAck | dict[str, Any] | None
"""The acknowledgement, the server's error, or None when no useful reply came in time."""
_REPLIES = msgspec.json.Decoder(dict[str, Any])


class Publisher:
    """Publishes to JetStream and answers with the stream sequence once the server has stored the message."""

    def __init__(self, nc: Client, in_flight: int = MAX_PENDING_ACKS) -> None:
        self._nc = nc
        self.slots = asyncio.Semaphore(in_flight)
        """One is held for each message from before it is sent until it is stored or given up."""
        self._inbox = ""
        self._pending_acks: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._tokens = itertools.count()
        self._waiting: Counter[str] = Counter()
        """Messages that wait for room, by the subject whose stream is full, or `STORAGE`."""

    @property
    def blocked_subjects(self) -> list[str]:
        """Subjects with messages that wait for room in their stream."""
        return sorted(self._waiting.keys() - {STORAGE})

    @property
    def is_without_storage(self) -> bool:
        """Whether messages wait for storage of the server."""
        return STORAGE in self._waiting

    async def start(self) -> None:
        """Listen for acknowledgements; under the connection's own prefix, so once it is made."""
        self._inbox = self._nc.new_inbox()
        await self._nc.subscribe(f"{self._inbox}.*", cb=self._on_ack)

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout: float, unique: bool = False
    ) -> int:
        """Stream sequence of the stored message.

        Raises `StreamFullError`, `StorageFullError`, `FencedError`, `CredentialsError`, `PublishTimeoutError` or
        `BusError`.
        ``timeout``: seconds, with the wait for a free place in the pipeline; may be infinite. With ``unique`` it raises
        `DuplicateMessageError` when the first try meets a message of the same id; a retry may meet its own.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self.slots.acquire()
        except TimeoutError:
            raise PublishTimeoutError(pipeline_full(subject, timeout)) from None
        try:
            with metrics.publish_duration.time():
                return await self.publish_until(deadline, subject, payload, dict(headers), timeout, unique)
        finally:
            self.slots.release()

    async def publish_until(
        self,
        deadline: float,
        subject: str,
        payload: bytes,
        headers: dict[str, str],
        timeout: float,
        unique: bool,
        replies: Sequence[Reply] = (),
    ) -> int:
        """Publish a message that has a place in the pipeline; ``replies`` are of earlier attempts at it."""
        earlier = iter(replies)
        loop = asyncio.get_running_loop()
        backoff = Backoff(RETRY_POLICY)
        full, first = "", True
        try:
            while (left := deadline - loop.time()) > 0:
                try:
                    ack = next(earlier)
                except StopIteration:
                    ack = await self._attempt(subject, payload, headers, min(left, ATTEMPT_SECONDS))
                if isinstance(ack, PublishAck):
                    if ack.is_duplicate and first and unique:
                        raise DuplicateMessageError(
                            f"{subject}: the stream has another message of the id {headers[MSG_ID_HEADER]!r}"
                        )
                    return ack.sequence
                failure = PublishFailure.RETRY if ack is None else classify(ack)
                first = first and failure in FULL  # what is full has stored nothing
                if ack is not None and failure is PublishFailure.FENCED:
                    raise FencedError(f"{subject}: another writer got there first ({ack.get('description')})")
                if ack is not None and failure is PublishFailure.FATAL:
                    raise BusError(f"{subject}: the server refused the message ({ack.get('description')})")
                if failure in FULL:
                    full = self._wait_for(STORAGE if failure is PublishFailure.NO_STORAGE else subject, full)
                await asyncio.sleep(min(random.uniform(0, backoff.next_delay()), max(0.0, deadline - loop.time())))
        finally:
            self._wait_for("", full)
        if full == STORAGE:
            raise StorageFullError(f"{subject}: not stored within {timeout:g} s: {NO_STORAGE}")
        if full:
            raise StreamFullError(f"{subject}: the stream stayed full for {timeout:g} s; its readers are slow or gone")
        raise PublishTimeoutError(
            f"{subject}: no acknowledgement within {timeout:g} s; is the bus running and provisioned?"
        )

    def _wait_for(self, full: str, before: str) -> str:
        """Count a message that waits for room in what is ``full``, no longer in that ``before``; return ``full``.

        Each is a subject, whose stream is full, `STORAGE`, or empty: the message does not wait.
        """
        if full == before:
            return full
        if before:
            metrics.publishes_blocked.dec()
            self._waiting[before] -= 1
            if not self._waiting[before]:
                del self._waiting[before]
                log.warning("%s: there is room again", before)
        if full:
            metrics.publishes_blocked.inc()
            self._waiting[full] += 1
            if self._waiting[full] == 1:
                log.warning(
                    "%s: %s",
                    full,
                    NO_STORAGE if full == STORAGE else "the stream is full; waiting until its readers have made room",
                )
        return full

    async def _attempt(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float) -> Reply:
        token, future = self.expect_reply(subject)
        try:
            async with asyncio.timeout(timeout):  # the sending too: on a connection that is dead it may wait as well
                await self.send(token, subject, payload, headers)
                message = await future
        except (TimeoutError, NatsError):
            return None
        finally:
            self.forget(token)
        return parse_reply(message)

    def expect_reply(self, subject: str) -> tuple[str, asyncio.Future[Msg]]:
        """Return a token for a message and the future of its reply, kept until `forget`."""
        token = str(next(self._tokens))
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._pending_acks[token] = subject, future
        return token, future

    def forget(self, token: str) -> None:
        """Drop a token whose reply has come or is no longer awaited."""
        del self._pending_acks[token]

    async def send(self, token: str, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        """Send a message whose reply is expected; raise `BusError` if it is too large, and nats' errors."""
        try:
            await self._nc.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
        except MaxPayloadError as error:
            raise BusError(f"{subject}: {len(payload)} bytes is over the server's limit") from error

    async def _on_ack(self, message: Msg) -> None:
        _, future = self._pending_acks.get(message.subject.rpartition(".")[2], ("", None))
        if future is not None and not future.done():
            future.set_result(message)

    def reject_subject(self, subject: str) -> None:
        """Fail the waiting publishes to a denied ``subject``, which nats-py reports in lower case."""
        for wanted, future in self._pending_acks.values():
            if wanted.lower() == subject and not future.done():
                future.set_exception(CredentialsError(f"{wanted}: this user has no right to publish there"))


def parse_reply(message: Msg) -> Reply:
    """Parse the server's reply to a published message."""
    if not message.data:  # no responders: no stream listens on the subject (yet)
        return None
    answer = _REPLIES.decode(message.data)
    if "error" in answer:
        return dict(answer["error"])
    return PublishAck(int(answer["seq"]), bool(answer.get("duplicate")))


def pipeline_full(subject: str, timeout: float) -> str:
    """Word the error for a message that got no place in the pipeline."""
    return f"{subject}: the publish pipeline stayed full for {timeout:g} s"
