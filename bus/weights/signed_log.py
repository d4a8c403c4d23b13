"""A subject of WEIGHTS or PROMPTS, reduced to its trustworthy messages.

Unreadable and unsigned messages are skipped.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.bus.security.signing import InvalidSignatureError
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditState
from lightningbus.schemas.codec import DecodeError, check_schema, decode
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.schemas.signers import SIGNED_EVENTS
from lightningbus.schemas.weights.events import ReleaseState, SwapLockState, WeightManifest

log = logging.getLogger(__name__)
E = TypeVar("E", WeightManifest, ReleaseState, SwapLockState, AuditState, PromptVersion, PromptReleaseState)

RESPONSE_TIMEOUT_SECONDS = 10.0
BATCH = 500
MAX_REMEMBERED = 100
"""Messages whose check is cached."""


@dataclass(frozen=True, slots=True)
class RawEntry:
    """A stored message as it came."""

    sequence: int
    data: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entry(Generic[E]):
    """A stored message that counts; ``signer`` is a role, empty where signing is off."""

    event: E
    sequence: int
    signer: str


class SignedLog(Generic[E]):
    """The messages of one model, or one prompt, on one subject; see the module."""

    def __init__(
        self,
        bus: Bus,
        subject: str,
        owner: str,
        kind: type[E],
        from_leader: bool = False,
        stream: str = subjects.WEIGHTS,
    ) -> None:
        """Prepare to read a subject; ``owner`` is the name of the model or prompt.

        ``from_leader``: read the last message from the stream's leader; others of a cluster may lag.
        """
        self._bus, self.subject, self._owner, self._stream = bus, subject, owner, stream
        self._from_leader = from_leader
        self._kind: type[E] = kind
        self._checked: dict[int, tuple[int, Entry[E] | None]] = {}
        self.skipped: dict[int, str] = {}
        """Reasons for skipped messages, by sequence; only the newest."""

    async def get_last(self) -> RawEntry | None:
        """Return the last message, trusted or not; None: there is none."""
        try:
            message = await self._bus.js.get_last_msg(self._stream, self.subject, direct=not self._from_leader)
        except NotFoundError:
            return None
        return RawEntry(int(message.seq or 0), message.data or b"", message.headers or {})

    async def newest_first(self, last: RawEntry | None) -> AsyncIterator[Entry[E]]:
        """Iterate backwards over trusted entries, from ``last`` on."""
        while last is not None:
            known = last.sequence in self._checked
            older = None if known else await self._previous(last)
            if (entry := self._entry(last, older.sequence if older else 0)) is not None:
                yield entry
            last = await self._previous(last) if known else older

    async def read_after(self, sequence: int) -> tuple[list[Entry[E]], int]:
        """Read the trusted entries after a sequence in order; return them and the last sequence seen."""
        entries: list[Entry[E]] = []
        while True:
            request = {"batch": BATCH, "seq": sequence + 1, "next_by_subj": self.subject}
            page = await self._raw(request)
            for raw in page:
                if (entry := self._entry(raw, sequence)) is not None:
                    entries.append(entry)
                sequence = raw.sequence
            if len(page) < BATCH:
                return entries, sequence

    def skip_reason(self, sequence: int) -> str:
        """Explain in a sentence why a message is skipped; empty: it is not, or was never read."""
        reason = self.skipped.get(sequence)
        return f"message {sequence} on {self.subject} is passed over: {reason}" if reason is not None else ""

    def skip(self, sequence: int, reason: str) -> None:
        """Skip a message: log and count it once."""
        if sequence in self.skipped:
            return
        self.skipped[sequence] = reason
        while len(self.skipped) > MAX_REMEMBERED:
            self.skipped.pop(next(iter(self.skipped)))
        metrics.messages_skipped.labels(self._kind.__name__).inc()
        log.warning("%s; `lightningbus %s repair` removes it", self.skip_reason(sequence), self._stream.lower())

    def _entry(self, raw: RawEntry, previous: int) -> Entry[E] | None:
        known = self._checked.get(raw.sequence)
        if known is not None and known[0] == hash(raw.data):  # otherwise the stream was created again
            return known[1]
        try:
            check_schema(self._kind, raw.headers.get(subjects.SCHEMA_HEADER, ""))
            event = decode(self._kind, raw.data)
            if (owner := _owner_of(event)) != self._owner:
                raise DecodeError(f"it is of {owner!r}")
            signer = ""
            if issubclass(self._kind, SIGNED_EVENTS):
                signer = self._bus.signing.check(self.subject, event, raw.data, raw.headers, previous)
            entry = Entry(event, raw.sequence, signer)
        except (DecodeError, InvalidSignatureError) as error:
            self.skip(raw.sequence, str(error))
            entry = None
        self._checked[raw.sequence] = hash(raw.data), entry
        while len(self._checked) > MAX_REMEMBERED:
            self._checked.pop(next(iter(self._checked)))
        return entry

    async def _previous(self, raw: RawEntry) -> RawEntry | None:
        if raw.sequence <= 1:
            return None
        request = {"multi_last": [self.subject], "up_to_seq": raw.sequence - 1}
        return next(iter(await self._raw(request)), None)

    async def _raw(self, request: Mapping[str, object]) -> list[RawEntry]:
        async with batch_get(self._bus.nc, self._stream, request, RESPONSE_TIMEOUT_SECONDS) as messages:
            return [RawEntry(sequence_of(message), message.data, message.headers or {}) async for message in messages]


def _owner_of(event: E) -> str:
    return event.name if isinstance(event, (PromptVersion, PromptReleaseState)) else event.model
