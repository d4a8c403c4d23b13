"""One delivered message: its event, and the ways to settle it."""

import json
from collections.abc import Callable
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg

from lightningbus.schemas import subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import check_schema, decode, decode_as

E = TypeVar("E", bound=Event)
ACK_SECONDS = 5.0


class Message:
    """A message held by this process until it is settled or released; both free its slot in the pull loop."""

    def __init__(self, nc: Client, message: Msg, free: Callable[[], None]) -> None:
        meta = message.metadata
        self._nc = nc
        self._reply = message.reply
        self._free: Callable[[], None] | None = free
        self.subject: str = message.subject
        self.headers: dict[str, str] = dict(message.headers or {})
        self.data: bytes = message.data
        self.stream: str = meta.stream
        self.sequence: int = meta.sequence.stream
        self.consumer_sequence: int = meta.sequence.consumer
        """Number of the consumer's delivery to any reader; a gap means another reader's message, or a lost one."""
        self.num_delivered: int = meta.num_delivered
        """1 for the first delivery: the attempt number."""
        self.num_pending: int = meta.num_pending
        """Messages waiting behind this one."""
        self.timestamp_ns: int = int(meta.timestamp.timestamp() * 1e9)

    @property
    def schema(self) -> str:
        """Event name and version the message claims, e.g. ``Task/1``; empty if it claims none."""
        return self.headers.get(subjects.SCHEMA_HEADER, "")

    def event(self) -> Event:
        """Decode and check the event; raise `lightningbus.schemas.codec.DecodeError`."""
        return decode_as(self.schema, self.data)

    def decode_as(self, kind: type[E]) -> E:
        """Decode an event of the expected type and version; raises `lightningbus.schemas.codec.DecodeError`."""
        check_schema(kind, self.schema)
        return decode(kind, self.data)

    async def ack(self, sync: bool = False) -> None:
        """Acknowledge the message; ``sync`` waits for the server's confirmation (after 5 s nats' TimeoutError)."""
        await self._ack_with(b"+ACK", sync)

    async def nak(self, delay: float = 0.0) -> None:
        """Give it back, to be delivered again after ``delay`` seconds."""
        await self._ack_with(b"-NAK " + json.dumps({"delay": int(delay * 1e9)}).encode())

    async def term(self, sync: bool = False) -> None:
        """Never deliver it again."""
        await self._ack_with(b"+TERM", sync)

    async def in_progress(self, sync: bool = False) -> None:
        """Restart the server's ack_wait; ``sync`` as in `ack`."""
        if sync:
            await self._nc.request(self._reply, b"+WPI", timeout=ACK_SECONDS)
        else:
            await self._nc.publish(self._reply, b"+WPI")

    def free_slot(self) -> None:
        """Free the slot without settling: the message is acknowledged later by a newer one."""
        if self._free is not None:
            self._free()
            self._free = None

    async def _ack_with(self, payload: bytes, sync: bool = False) -> None:
        try:
            if sync:
                await self._nc.request(self._reply, payload, timeout=ACK_SECONDS)
            else:
                await self._nc.publish(self._reply, payload)
        finally:
            self.free_slot()
