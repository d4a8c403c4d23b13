"""The bus as every role sees it: one connection with all that may be done on it."""

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import replace
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import NotFoundError, ServiceUnavailableError

from bus import provisioning, streams
from bus.addresses import server_addresses, wants_tls, without_secrets
from bus.consumer_upkeep import Upkeep
from bus.errors import AccessError, BusError, DuplicateMessage
from bus.fleet.heartbeats import Fleet, Pulse, beating
from bus.message import Delivery
from bus.nats_client import Client
from bus.object_store import Blobs
from bus.publisher import Publisher
from bus.pull_consumer import EXPIRES_SECONDS, Puller
from bus.security import certificate_expiry
from bus.security.auth_refusals import Refusals
from bus.security.credentials import Access, refusal
from bus.security.signing import AFTER, Signing
from bus.stream_sizes import StreamSizes
from bus.streams import Backlog, Consumer, StreamState, provision_options
from bus.task_file import producer_span, together
from common.aio import Interrupted, cancel, run_unless
from common.observability import metrics
from schemas import ids, subjects
from schemas.base import Event
from schemas.codec import EncodeError, decode, encode, schema_of
from schemas.dead_letters import DeadLetter
from schemas.signers import SIGNED_EVENTS
from schemas.tasks import Task, TaskBatchRecord, TaskRecord
from schemas.text import shorten

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Event)

CONNECT_SECONDS = 10.0
LEADERLESS = (NatsTimeoutError, NoRespondersError, ServiceUnavailableError)
"""What JetStream answers, or fails to, while a cluster elects a leader."""
LEADER_SECONDS = 60.0
LEADER_PAUSE_SECONDS = 0.5
PUBLISH_SECONDS = 30.0
MAX_REASON = 2000
"""Characters of a dead letter's reason, which may repeat what a stranger sent."""
PING_SECONDS = 5
"""A connection over which two pings in a row are not answered is dead, though nobody has said so."""
POLL_SECONDS = 0.02
GIVE_UP_SECONDS = 1.0
REFUSED_SECONDS = 60.0
"""A connection that was lost and is refused for so long is given up: its keys are not coming."""
REFUSALS_PAUSE_SECONDS = 30.0
EXPIRY_SECONDS = 86400.0
"""Between two looks at when the certificates end."""
GREETING_SECONDS = 3.0
"""For a server's first words. One that waits for TLS says none and hangs up after 2 s, by which we know it."""
DENIALS_KEPT = 16
DENIED = re.compile(r'permissions violation for (?:publish|subscription) to "(.+?)"')
"""nats-py hands on what the server says in lower case."""
NO_GREETING = "empty response from server"
ASKS_FOR_TLS = " (something listens there that says nothing of itself: if it wants TLS, give --access)"
DEFAULT_URL = "nats://127.0.0.1:4222"


class Bus:
    """A connection to NATS JetStream; make one with `Bus.connect`."""

    def __init__(self, nc: Client, known: bool = False, signing: Signing | None = None) -> None:
        self.nc = nc
        self.signing = signing or Signing()
        """How weight versions and decisions are signed, and by whose keys they are believed."""
        self._known = known
        self._refused = ""
        self._refusals = Refusals(REFUSED_SECONDS, REFUSALS_PAUSE_SECONDS)
        self._hint = ""
        self._new_certificates = asyncio.Event()
        self.js = nc.jetstream(timeout=10)
        self._last_error = ""
        self._connecting = True
        self._settled = False  # connected once, and not being closed: only then is losing the connection news
        self.failed = asyncio.Event()
        """Set when the connection is closed for good, or what is read is not there; the process should end."""
        self._given_up = ""
        self.reconnected = asyncio.Event()
        """Set at each reconnect, for whoever waits for one; they clear it."""
        self.pulse: Pulse | None = None
        """The heartbeat of the role this process is; None before it has begun."""
        self.denied: deque[str] = deque(maxlen=DENIALS_KEPT)
        """What the server said last of what this user may not do."""
        self._said_no = asyncio.Event()
        self._publisher = Publisher(nc)
        self._pullers: set[Puller] = set()
        self._upkeep = Upkeep(self.ensure, self.backlog)
        self.blobs = Blobs(nc, self.js, self._publisher)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = DEFAULT_URL,
        name: str = "lightningbus",
        wait: float = CONNECT_SECONDS,
        access: Access | None = None,
    ) -> AsyncIterator["Bus"]:
        """Connect, and reconnect for ever; raises `BusError` when nobody answers within ``wait`` seconds at first.

        ``url`` may name several servers of a cluster, with commas between them; one ``tls://`` among them holds for
        all. The files of ``access`` are read again at each reconnect. Raises `AddressError` for what is no address,
        and `AccessError` when a server does not let us in, or we do not believe it.
        """
        addresses = server_addresses(url)
        nc = Client(access.options if access is not None else dict, wants_tls(addresses))
        bus = cls(nc, access is not None and access.has_user, access.signatures if access is not None else None)
        options = access.options() if access is not None else {}
        try:
            async with asyncio.timeout(wait):
                await nc.connect(
                    addresses,
                    name=name,
                    connect_timeout=GREETING_SECONDS,  # type: ignore[arg-type]
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=2,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.5,  # type: ignore[arg-type]
                    error_cb=bus._on_error,
                    disconnected_cb=bus._on_disconnect,
                    reconnected_cb=bus._on_reconnect,
                    closed_cb=bus._on_closed,
                    **options,
                )
                # nats-py takes a connection that ended at once for one, and makes another behind our back.
                while not nc.is_connected and not bus._refused:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
            if bus._refused:
                raise AccessError(bus._refused)
        except (TimeoutError, OSError, NatsError, AccessError) as error:
            await bus._give_up()
            where = without_secrets(url)
            if bus._refused:
                raise AccessError(f"the bus at {where} cannot be used: {bus._refused}") from error
            sentence = f"no NATS server answers at {where}: start one with `lightningbus bus`{bus._hint}"
            raise BusError(sentence) from error
        upkeep = asyncio.create_task(bus._keep_up())
        certificates = asyncio.create_task(bus._watch_certificates(access))
        try:
            bus._connecting, bus._settled = False, True
            await bus._publisher.start()
            yield bus
        finally:
            bus._settled = False
            await cancel(upkeep, certificates)
            # A connection that is lost as it is closed is closed; uvloop raises RuntimeError for writing to one.
            with contextlib.suppress(OSError, RuntimeError):
                await nc.close()

    @property
    def failure(self) -> BusError:
        """Why it failed for good; an `AccessError` when the server no longer lets us in."""
        if self._given_up:
            return BusError(self._given_up)
        if self._refused:
            return AccessError(f"the bus cannot be used any more: {self._refused}")
        return BusError("the connection to the bus was closed for good")

    async def raise_failure(self) -> None:
        """Wait until it is closed for good, then raise `failure`."""
        await self.failed.wait()
        raise self.failure

    @property
    def full(self) -> str:
        """The subjects whose stream has no room for what this process publishes, one after the other; empty: none."""
        return ", ".join(sorted(self._publisher.full))

    @property
    def problem(self) -> str:
        """What this process needs and is not on the bus, as a sentence; empty: nothing."""
        return self._upkeep.problem

    async def provision(
        self, replicas: int | None = None, sizes: StreamSizes | None = None, more: Sequence[Consumer] = ()
    ) -> None:
        """Make all streams, the durables of store and learner, and ``more``, such as runners'; safe to repeat.

        ``replicas``: servers of a cluster that hold each stream; None: as many as there are now, else one. What
        ``sizes`` leaves out is left as it is now, else as shipped. A cluster that has no leader yet is waited for;
        raises `BusError` when it has none after 60 s.
        """
        await self._made(lambda: provisioning.provision(self.js, replicas, sizes, more))

    async def keep_provisioned(self, sizes: StreamSizes | None = None, more: Sequence[Consumer] = ()) -> None:
        """`provision` at every reconnect, for ever: a server may come back with an empty disk."""
        while True:
            await self.reconnected.wait()
            self.reconnected.clear()
            try:
                await self.provision(sizes=sizes, more=more)
            except (BusError, NatsError) as error:
                log.warning("the streams are not made, trying again: %s", str(error) or type(error).__name__)
                await asyncio.sleep(LEADER_PAUSE_SECONDS)
                self.reconnected.set()

    async def ensure(self, consumer: Consumer) -> None:
        """Make one durable, or find it as it should be; safe to repeat, and patient as `provision`.

        It is made again on a bus that has lost it. Raises `AccessError` where this user may not make it: only
        ``admin`` may.
        """
        self._upkeep.own(consumer)
        try:
            await self._made(lambda: provisioning.ensure_consumer(self.js, consumer))
        except AccessError as error:
            raise AccessError(
                f"the durable {consumer.durable} of {consumer.stream} is missing or not as this role needs it "
                f"(ack_wait {consumer.ack_wait:g} s), and this user may not make it: "
                f"run `lightningbus provision{provision_options(consumer)}` once as admin"
            ) from error
        except NotFoundError as error:
            raise BusError(streams.missing(consumer.stream)) from error

    async def check_stream(self, stream: str) -> None:
        """Raises `BusError` unless the stream is there; patient as `provision`."""

        async def look() -> None:
            await self.js.stream_info(stream)

        try:
            await self._made(look)
        except NotFoundError as error:
            raise BusError(streams.missing(stream)) from error

    async def reset(self, consumer: Consumer, sequence: int) -> None:
        """Deliver again from a stream sequence on."""
        await self.js.reset_consumer(consumer.stream, consumer.durable, seq=sequence)

    async def stream(self, name: str) -> StreamState:
        """What a stream is now; raises `BusError` if there is none."""
        try:
            return await provisioning.state_of(self.js, name)
        except NotFoundError as error:
            raise BusError(streams.missing(name)) from error

    async def backlog(self, consumer: Consumer) -> Backlog:
        """What a durable has to do yet, and has done; raises nats' errors if it is not there."""
        return await provisioning.backlog_of(self.js, consumer)

    async def delivered(self, consumer: Consumer) -> int:
        """How many deliveries a durable has made to anybody since it was made or reset: the last one's number."""
        return (await self.backlog(consumer)).delivered

    async def publish(
        self,
        subject: str,
        event: Event,
        *,
        msg_id: str,
        traceparent: str | None = None,
        timeout: float = PUBLISH_SECONDS,
        expect_last: int | None = None,
        unique: bool = False,
    ) -> int:
        """Publish an event and wait until the stream has it; returns its stream sequence.

        ``expect_last`` is the sequence of the last message this writer saw on the subject (0: none). ``unique``: a
        message of the same id that is there before the first try is an error. Weight versions and decisions are
        signed. Raises `StreamFull`, `Fenced`,
        `DuplicateMessage`, `PublishTimeout`, `BusError`, or `schemas.codec.EncodeError`.
        """
        headers = {subjects.SCHEMA_HEADER: schema_of(event), subjects.MSG_ID_HEADER: msg_id}
        if traceparent is not None:
            headers[subjects.TRACE_HEADER] = traceparent
        if expect_last is not None:
            headers[AFTER] = str(expect_last)
        payload = encode(event)
        if isinstance(event, SIGNED_EVENTS):
            headers |= self.signing.headers(subject, event, payload, expect_last or 0)
        return await self.publish_raw(subject, payload, headers, timeout, unique)

    async def publish_raw(
        self, subject: str, payload: bytes, headers: dict[str, str], timeout: float, unique: bool = False
    ) -> int:
        """`publish` of bytes with all their headers."""
        return await self._publisher.publish(subject, payload, headers, timeout, unique)

    async def publish_task(self, task: Task, timeout: float = PUBLISH_SECONDS) -> None:
        """`publish_tasks` of one."""
        await self.publish_tasks([task], timeout)

    async def publish_tasks(self, tasks: Sequence[Task], timeout: float = PUBLISH_SECONDS, nonce: str = "") -> int:
        """Publish tasks, then the record of those the bus has; returns how many it did not have before.

        With a ``nonce`` the broker takes tasks once more that it was sent without it, or with another. Raises the
        first error after the record, as `publish`.
        """
        sent = await asyncio.gather(
            *(self._publish_task(task, timeout, nonce) for task in tasks), return_exceptions=True
        )
        stored = [result for result in sent if not isinstance(result, BaseException)]
        await self.record_tasks([record for record, _ in stored], timeout, nonce)
        for one in sent:
            if isinstance(one, BaseException):
                raise one
        return sum(is_new for _, is_new in stored)

    async def record_tasks(
        self, records: Sequence[TaskRecord], timeout: float = PUBLISH_SECONDS, nonce: str = ""
    ) -> None:
        """Publish the record of published tasks, from which the store makes its rows; raises as `publish`."""
        for batch in together(records):
            msg_id = ids.tasks_msg_id(record.rollout_id for record in batch) + nonce
            event = TaskBatchRecord(tasks=tuple(batch))
            await self.publish(subjects.TASK_PUBLISHED, event, msg_id=msg_id, timeout=timeout)

    async def _publish_task(self, task: Task, timeout: float, nonce: str) -> tuple[TaskRecord, bool]:
        """The record of a task, whose PRODUCER span opens the rollout's trace; False if the bus had the task."""
        started = time.time_ns()
        rollout = ids.rollout_id(task.id, task.sample_index)
        context = ids.task_traceparent(rollout)
        subject = subjects.task(task.mode, task.agent)
        msg_id = ids.task_msg_id(rollout) + nonce
        is_new = True
        try:
            await self.publish(subject, task, msg_id=msg_id, traceparent=context, timeout=timeout, unique=True)
        except DuplicateMessage:
            is_new = False
        span = producer_span(task, subject, started, time.time_ns())
        return TaskRecord(task=task, rollout_id=rollout, span=span), is_new

    async def last(self, stream: str, subject: str, kind: type[E]) -> tuple[E, int] | None:
        """Last event on a subject with its stream sequence; None if there is none."""
        try:
            message = await self.js.get_last_msg(stream, subject, direct=True)
        except NotFoundError:
            return None
        return decode(kind, message.data or b""), int(message.seq or 0)

    @asynccontextmanager
    async def pull(self, consumer: Consumer, slots: int, expires: float = EXPIRES_SECONDS) -> AsyncIterator[Puller]:
        """Pull loop over a durable; at most ``slots`` deliveries are held at once.

        A request for them waits ``expires`` seconds at the server, then the next one does.
        """
        self._upkeep.use(consumer)
        try:
            async with self._pulling(consumer.stream, consumer.durable, slots, expires, self._upkeep.look) as puller:
                yield puller
        finally:
            self._upkeep.leave(consumer)

    @asynccontextmanager
    async def pull_named(
        self, stream: str, consumer: str, slots: int, expires: float = EXPIRES_SECONDS
    ) -> AsyncIterator[Puller]:
        """`pull` from a consumer that is none of ours."""
        async with self._pulling(stream, consumer, slots, expires, lambda: None) as puller:
            yield puller

    @asynccontextmanager
    async def _pulling(
        self, stream: str, consumer: str, slots: int, expires: float, on_gone: Callable[[], None]
    ) -> AsyncIterator[Puller]:
        puller = Puller(self.nc, stream, consumer, slots, self._pullers.discard, expires, on_gone)
        self._pullers.add(puller)
        async with puller:
            yield puller

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Keep a message nobody can use as a dead letter, then never deliver it again.

        Of one that fills a message by itself the letter has neither headers nor bytes.
        """
        reason = shorten(reason, MAX_REASON)
        letter = DeadLetter(
            stream=delivery.stream,
            subject=delivery.subject,
            sequence=delivery.sequence,
            num_delivered=delivery.deliveries,
            reason=reason,
            headers=delivery.headers,
            payload=delivery.data,
            dead_lettered_at_ns=time.time_ns(),
        )
        try:
            encode(letter)
        except EncodeError:
            reason = f"{reason}; its {len(delivery.data)} bytes were too many to keep"
            letter = replace(letter, reason=reason, headers={}, payload=b"")
        log.warning("dead letter %s/%d: %s", delivery.stream, delivery.sequence, reason)
        await self.publish(subjects.dlq(delivery.stream), letter, msg_id=f"dead:{delivery.stream}:{delivery.sequence}")
        metrics.dead_letters.labels(delivery.stream).inc()
        await delivery.term(sync=True)

    @asynccontextmanager
    async def beat(self, role: str, id: str, describe: Callable[[], dict[str, Any]]) -> AsyncIterator[Pulse]:
        """Heartbeat each second while the block runs; ``describe`` gives `Heartbeat`'s other fields."""
        self.pulse = Pulse(self.nc, role, id, lambda: self._describe(describe()))
        async with beating(self.pulse) as pulse:
            yield pulse

    def _describe(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "status": {**fields.get("status", {}), "bus": self.problem}} if self.problem else fields

    def fleet(self, role: str) -> Fleet:
        """Live view of who is alive in a role (``*``: in any); an async context manager."""
        return Fleet(self.nc, role)

    async def _give_up(self) -> None:
        """Close what was never connected; after a failed TLS handshake asyncio waits for its end for ever."""
        self._connecting = False
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self.nc.close()

    async def _made(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        deadline = asyncio.get_running_loop().time() + LEADER_SECONDS
        while True:
            try:
                return await self._allowed(make())
            except LEADERLESS as error:
                if asyncio.get_running_loop().time() > deadline:
                    said = error or type(error).__name__
                    raise BusError(f"JetStream has been without a leader for {LEADER_SECONDS:g} s: {said}") from error
            await asyncio.sleep(LEADER_PAUSE_SECONDS)

    async def _allowed(self, request: Coroutine[Any, Any, None]) -> None:
        """A request to JetStream; raises `AccessError` when the server says no, of which the request does not hear."""
        self._said_no.clear()
        try:
            await run_unless(self._said_no.wait(), request)
        except Interrupted:
            raise AccessError(f"this user has no right to do that: {self.denied[-1]}") from None

    async def _on_error(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if self._connecting:
            if NO_GREETING in said and not self._known:
                self._hint = ASKS_FOR_TLS
            self._refused = self._refused or refusal(error, self._known)
            if self._refused:
                raise AccessError(self._refused)  # nats-py would ask again for ever
        elif self._settled and (reason := refusal(error, self._known)):
            self._note_refusal(reason)
        if denied := DENIED.search(said):
            self.denied.append(said)
            self._said_no.set()
            self._publisher.refuse(denied[1])
        if self._settled and said != self._last_error:  # while it reconnects, once is enough
            self._last_error = said
            log.warning("bus: %s", said)

    async def _watch_certificates(self, access: Access | None) -> None:
        """Show when the certificates end, and warn when that is near: now, at each reconnect, and once a day."""
        while access is not None and access.cert is not None:
            ends = certificate_expiry.ends_of(access, self.nc.peer_certificate)
            for name, end in ends.items():
                metrics.certificate_ends.labels(name).set(end)
            for sentence in certificate_expiry.warnings(ends, time.time()):
                log.warning("%s", sentence)
            self._new_certificates.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPIRY_SECONDS):
                    await self._new_certificates.wait()

    def _note_refusal(self, reason: str) -> None:
        """The server does not let us in again; the files may hold new keys soon, but not for ever."""
        if self._refusals.add(asyncio.get_running_loop().time()):
            self._refused = reason
            self.failed.set()

    async def _on_disconnect(self) -> None:
        if self._settled:
            log.warning("bus: disconnected; reconnecting")

    async def _on_reconnect(self) -> None:
        self._last_error = ""
        self._refusals.clear()
        self._new_certificates.set()
        metrics.reconnects.inc()
        log.warning("bus: connected again")
        self.reconnected.set()
        for puller in self._pullers:
            puller.forget_requests()
        self._upkeep.look()

    async def _keep_up(self) -> None:
        self._given_up = await self._upkeep.run()
        self.failed.set()

    async def _on_closed(self) -> None:
        self.failed.set()
