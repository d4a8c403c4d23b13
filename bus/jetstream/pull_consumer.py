"""Pull loop that keeps exactly its free slots asked for.

A slot is free, asked for, or held. Whenever some are free, one request asks for all of them; a request that
ends early, or falls silent, frees what it still had. nats-py's ``fetch`` would wait for the slowest message
of a batch before it asks for the next.
"""

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from types import TracebackType

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from lightningbus.bus.jetstream.message import Message
from lightningbus.common.aio import cancel_and_wait

log = logging.getLogger(__name__)

EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
EXPECTED_STATUS = frozenset({"404", "408"})
"""Statuses that end a request in the ordinary way: no message left, or its time was up."""
NO_RESPONDERS, DELETED = "503", frozenset({"consumer deleted", "stream deleted"})
"""Status without such a consumer, and descriptions that waiting requests get when it is deleted."""
REJECTED_PAUSE_SECONDS = 0.5
"""Pause after the server refused a request: a leader is being elected, or the consumer is gone."""
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
"""Seconds of silence after which a request counts as lost (a server restart, a dropped connection)."""


class PullConsumer:
    """Async iterator over the messages of a durable consumer; at most ``slots`` are held at once."""

    def __init__(
        self,
        nc: Client,
        stream: str,
        consumer: str,
        slots: int,
        on_close: Callable[["PullConsumer"], None],
        expires: float = EXPIRES_SECONDS,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Subscribe to an inbox of its own.

        ``expires``: seconds a request waits at the server, at least two `HEARTBEAT_SECONDS`.
        ``on_gone`` is called when the consumer does not answer, or is deleted.
        """
        self._nc = nc
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._on_close, self._on_gone = on_close, on_gone
        self._max_in_flight = slots
        self._expires = expires
        self._in_flight = 0
        self._outstanding: dict[str, tuple[int, float]] = {}  # request token -> (messages still due, last heard of)
        self._tokens = itertools.count()
        self._inbox = nc.new_inbox()
        self._ready: asyncio.Queue[Message | None] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._stopped = False
        self._not_before = 0.0
        self.num_rejected = 0
        """Requests the server would not have wait."""
        self._subscription: Subscription | None = None
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """Deliveries neither settled nor released."""
        return self._in_flight

    def resize(self, slots: int) -> None:
        """Change the number of slots; 0 pauses pulling, but requested messages may still arrive."""
        self._max_in_flight = slots
        self._wake.set()

    def stop(self) -> None:
        """Ask for nothing more; iteration ends after what has already arrived."""
        if not self._stopped:
            self._stopped = True
            self._wake.set()
            self._ready.put_nowait(None)

    def reset_requests(self) -> None:
        """Forget earlier requests: the server of a new connection does not know them."""
        self._outstanding.clear()
        self._wake.set()

    async def __aenter__(self) -> "PullConsumer":
        self._subscription = await self._nc.subscribe(
            f"{self._inbox}.*", cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._loop_task = asyncio.create_task(self._request_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._on_close(self)
        if self._loop_task is not None:
            await cancel_and_wait(self._loop_task)
        if self._nc.is_closed:
            return
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        while not self._ready.empty():  # arrived but never seen by anybody: give it back now, not after ack_wait
            message = self._ready.get_nowait()
            if message is not None:
                await message.nak()

    def __aiter__(self) -> "PullConsumer":
        return self

    async def __anext__(self) -> Message:
        message = await self._ready.get()
        if message is None:
            raise StopAsyncIteration
        return message

    async def _request_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = loop.time()
            self._outstanding = {
                t: (n, seen_at) for t, (n, seen_at) in self._outstanding.items() if now - seen_at < SILENCE_SECONDS
            }
            free = self._max_in_flight - self._in_flight - sum(n for n, _ in self._outstanding.values())
            if free > 0 and not self._stopped and now >= self._not_before:
                await self._request(free, now)
            wait = self._not_before - now if now < self._not_before else HEARTBEAT_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _request(self, count: int, now: float) -> None:
        token = str(next(self._tokens))
        self._outstanding[token] = (count, now)
        body = {"batch": count, "expires": int(self._expires * 1e9), "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9)}
        try:
            await self._nc.publish(self._subject, json.dumps(body).encode(), reply=f"{self._inbox}.{token}")
        except NatsError:
            # Not connected: stays asked for, so that the loop tries again on reconnect or after the silence.
            return

    async def _on_message(self, raw: Msg) -> None:
        if not raw.reply:  # only stored messages carry a reply subject, for their acknowledgement
            headers = raw.headers or {}
            if headers.get("Status") == NO_RESPONDERS or headers.get("Description", "").lower() in DELETED:
                self._on_gone()
            self._on_status(raw.subject.rpartition(".")[2], str(headers.get("Status")))
            return
        try:
            message = Message(self._nc, raw, self._free)
        except (NatsError, ValueError, LookupError, OverflowError) as error:
            log.warning("a message on %s comes from no stream and is left out: %s", raw.subject, error)
            return
        self._count_delivered()
        self._in_flight += 1
        self._ready.put_nowait(message)

    def _count_delivered(self) -> None:
        # A stored message arrives under its own subject, not its request's; the server serves requests in order.
        for token, (due, _) in self._outstanding.items():
            if due > 1:
                self._outstanding[token] = (due - 1, asyncio.get_running_loop().time())
            else:
                del self._outstanding[token]
            return

    def _on_status(self, token: str, status: str) -> None:
        now = asyncio.get_running_loop().time()
        if status == "100" and token in self._outstanding:
            self._outstanding[token] = (self._outstanding[token][0], now)
            return
        if self._outstanding.pop(token, None) is not None:
            if status not in EXPECTED_STATUS:
                self.num_rejected += 1
                self._not_before = now + REJECTED_PAUSE_SECONDS
            self._wake.set()

    def _free(self) -> None:
        self._in_flight -= 1
        self._wake.set()
