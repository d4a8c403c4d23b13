"""The bus as every role sees it: one connection with all that may be done on it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from lightningbus.bus.connection import CONNECT_SECONDS, LEADER_POLL_SECONDS, Connection
from lightningbus.bus.errors import NO_STORAGE, BusError, CredentialsError
from lightningbus.bus.fleet.heartbeats import Fleet, HeartbeatPublisher, publish_heartbeats
from lightningbus.bus.jetstream.addresses import DEFAULT_URL
from lightningbus.bus.jetstream.object_store import ObjectStore
from lightningbus.bus.jetstream.publish_batch import OutgoingMessage, encode_event, publish_batch
from lightningbus.bus.jetstream.publisher import Publisher
from lightningbus.bus.jetstream.pull_consumer import EXPIRES_SECONDS, PullConsumer
from lightningbus.bus.jetstream.refusals import explain_refusal
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.signing import EXPECTED_LAST_HEADER, Signing
from lightningbus.bus.streams import provisioning
from lightningbus.bus.streams import specs as streams
from lightningbus.bus.streams.consumer_upkeep import ConsumerUpkeep
from lightningbus.bus.streams.provisioning import ProvisionReport
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.bus.streams.specs import Backlog, ConsumerSpec, StreamState, provision_options
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import decode
from lightningbus.schemas.signers import SIGNED_EVENTS

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Event)

PUBLISH_SECONDS = 30.0


class Bus:
    """A connection to NATS JetStream; make one with `Bus.connect`."""

    def __init__(self, connection: Connection, signing: Signing | None = None) -> None:
        self._connection = connection
        self.nc, self.js = connection.nc, connection.js
        self.closed, self.reconnected = connection.closed, connection.reconnected
        self.permission_errors = connection.permission_errors
        self.signing = signing or Signing()
        """Keys by which this process signs and verifies weight versions and decisions."""
        self.heartbeats: list[HeartbeatPublisher] = []
        """The heartbeats of this process' role; several of a node with several models, none before they have begun."""
        self._publisher = Publisher(self.nc)
        self._pull_consumers: set[PullConsumer] = set()
        self._upkeep = ConsumerUpkeep(self.ensure_consumer, self.backlog)
        self.object_store = ObjectStore(self.nc, self.js, self._publisher)
        connection.on_permission_error = self._publisher.reject_subject
        connection.on_reconnect = self._on_reconnect

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = DEFAULT_URL,
        name: str = "lightningbus",
        wait: float = CONNECT_SECONDS,
        credentials: Credentials | None = None,
    ) -> AsyncIterator["Bus"]:
        """Connect, and reconnect for ever; raise `BusError` if no server answers within ``wait`` seconds at first.

        ``url`` may name several servers of a cluster, separated by commas; one ``tls://`` among them applies to all.
        Raises `AddressError` for an invalid address, and `CredentialsError`, as `Connection.open`; an error of nats
        that ends the block becomes a `BusError`.
        """
        async with Connection(url, credentials).open(name, wait) as connection:
            signing = credentials.build_signing() if credentials is not None else Signing()
            signing.check_files()
            bus = cls(connection, signing)
            upkeep = asyncio.create_task(bus._run_upkeep())
            try:
                await bus._publisher.start()
                yield bus
            except NatsError as error:
                raise BusError(explain_refusal(error)) from error
            finally:
                await cancel_and_wait(upkeep)

    @property
    def failure(self) -> BusError:
        """The error that closed this connection for good: a `CredentialsError` when the server no longer accepts us."""
        return self._connection.failure

    async def raise_failure(self) -> None:
        """Wait until it is closed for good, then raise `failure`."""
        await self.closed.wait()
        raise self.failure

    @property
    def blocked_subjects(self) -> str:
        """Subjects whose stream has no room for this process's messages, joined by commas; empty: none."""
        return ", ".join(self._publisher.blocked_subjects)

    @property
    def problem(self) -> str:
        """A sentence about a stream or durable that this process needs and the bus lacks; empty: nothing is missing."""
        return self._upkeep.problem

    @property
    def storage_problem(self) -> str:
        """A sentence while messages of this process wait for storage of the server; empty: none do."""
        return NO_STORAGE if self._publisher.is_without_storage else ""

    async def provision(
        self,
        replicas: int | None = None,
        sizes: StreamSizes | None = None,
        more: Sequence[ConsumerSpec] = (),
        policies: Sequence[str] = streams.DEFAULT_POLICIES,
    ) -> ProvisionReport:
        """Make all streams, the durables of the store and of the learners, and ``more``; return what was done.

        It is safe to repeat.

        ``policies`` are the models that learners train; ``more`` are durables of runners.

        ``replicas``: servers of a cluster that hold each stream; None: as many as there are now, else one. What
        ``sizes`` leaves out is left as it is now, else as shipped. A cluster that has no leader yet is waited for;
        raises `BusError` when it has none after 60 s.
        """
        report = ProvisionReport()  # one for all tries
        await self._connection.retry_until_leader(
            lambda: provisioning.provision(self.js, replicas, sizes, more, policies, report)
        )
        return report

    async def keep_provisioned(
        self,
        sizes: StreamSizes | None = None,
        more: Sequence[ConsumerSpec] = (),
        policies: Sequence[str] = streams.DEFAULT_POLICIES,
    ) -> None:
        """Run `provision` at every reconnect, for ever: a server may come back with an empty disk."""
        while True:
            await self.reconnected.wait()
            self.reconnected.clear()
            try:
                await self.provision(sizes=sizes, more=more, policies=policies)
            except (BusError, NatsError) as error:
                log.warning("the streams are not made, trying again: %s", str(error) or type(error).__name__)
                await asyncio.sleep(LEADER_POLL_SECONDS)
                self.reconnected.set()

    async def ensure_consumer(self, consumer: ConsumerSpec) -> None:
        """Make one durable, or find it as it should be; safe to repeat, and patient as `provision`.

        It is made again on a bus that has lost it. Raises `CredentialsError` where this user may not make it: only
        ``admin`` may.
        """
        self._upkeep.add_owned(consumer)
        try:
            await self._connection.retry_until_leader(lambda: provisioning.ensure_consumer(self.js, consumer))
        except CredentialsError as error:
            raise CredentialsError(
                f"the durable {consumer.durable} of {consumer.stream} is missing or not as this role needs it "
                f"(ack_wait {consumer.ack_wait:g} s), and this user may not make it: "
                f"run `lightningbus provision{provision_options(consumer)}` once as admin"
            ) from error
        except NotFoundError as error:
            raise BusError(streams.missing_stream_error(consumer.stream)) from error

    async def remove_consumer(self, consumer: ConsumerSpec) -> None:
        """Delete a durable that nobody else reads, and the messages that it was for; safe to repeat.

        Only ``admin`` may. Raises nats' errors.
        """
        self._upkeep.remove_owned(consumer)
        with suppress(NotFoundError):
            await self.js.delete_consumer(consumer.stream, consumer.durable)
        await self.js.purge_stream(consumer.stream, subject=consumer.filter_subject)

    async def check_stream(self, stream: str) -> None:
        """Raise `BusError` unless the stream exists; retry as `provision` does."""

        async def request_info() -> None:
            await self.js.stream_info(stream)

        try:
            await self._connection.retry_until_leader(request_info)
        except NotFoundError as error:
            raise BusError(streams.missing_stream_error(stream)) from error

    async def reset_consumer(self, consumer: ConsumerSpec, sequence: int) -> None:
        """Deliver again from a stream sequence on."""
        await self.js.reset_consumer(consumer.stream, consumer.durable, seq=sequence)

    async def stream_state(self, name: str) -> StreamState:
        """Return the current state of a stream; raise `BusError` if there is none."""
        try:
            return await provisioning.get_stream_state(self.js, name)
        except NotFoundError as error:
            raise BusError(streams.missing_stream_error(name)) from error

    async def backlog(self, consumer: ConsumerSpec) -> Backlog:
        """Return the remaining and finished work of a durable; raise nats' errors if it does not exist."""
        return await provisioning.get_backlog(self.js, consumer)

    async def get_ack_wait(self, consumer: ConsumerSpec) -> float:
        """Return the seconds after which a durable delivers a message again; raise `BusError` if it does not exist."""
        try:
            return float((await self.js.consumer_info(consumer.stream, consumer.durable)).config.ack_wait)
        except NotFoundError as error:
            raise BusError(streams.missing_stream_error(consumer.stream)) from error

    async def consumer_names(self, stream: str) -> list[str]:
        """List the durables of a stream, at most the first thousand; raise nats' errors."""
        response = await self.nc.request(f"$JS.API.CONSUMER.NAMES.{stream}", b"{}")
        return list(json.loads(response.data).get("consumers") or ())

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
        signed. Raises `StreamFullError`, `FencedError`,
        `DuplicateMessageError`, `PublishTimeoutError`, `BusError`, or `lightningbus.schemas.codec.EncodeError`.
        """
        _, payload, headers = encode_event(subject, event, msg_id, traceparent)
        if expect_last is not None:
            headers[EXPECTED_LAST_HEADER] = str(expect_last)
        if isinstance(event, SIGNED_EVENTS):
            headers |= self.signing.headers(subject, event, payload, expect_last or 0)
        return await self.publish_bytes(subject, payload, headers, timeout, unique)

    async def publish_batch(
        self, messages: Sequence[OutgoingMessage], timeout: float = PUBLISH_SECONDS, unique: bool = False
    ) -> list[int | BusError]:
        """Publish many messages in order; return for each its stream sequence, or its error.

        It costs less than a call of `publish_bytes` each, and no error of one message hides another's result.
        """
        return await publish_batch(self._publisher, messages, timeout, unique)

    async def publish_bytes(
        self, subject: str, payload: bytes, headers: dict[str, str], timeout: float, unique: bool = False
    ) -> int:
        """Publish bytes with all their headers; see `publish`."""
        return await self._publisher.publish(subject, payload, headers, timeout, unique)

    async def get_last(self, stream: str, subject: str, kind: type[E]) -> tuple[E, int] | None:
        """Return the last event on a subject with its stream sequence; None if there is none."""
        try:
            message = await self.js.get_last_msg(stream, subject, direct=True)
        except NotFoundError:
            return None
        return decode(kind, message.data or b""), int(message.seq or 0)

    @asynccontextmanager
    async def pull(
        self, consumer: ConsumerSpec, slots: int, expires: float = EXPIRES_SECONDS
    ) -> AsyncIterator[PullConsumer]:
        """Pull messages of a durable while the block runs; at most ``slots`` are held at once.

        A request waits ``expires`` seconds at the server, then the next one follows.
        """
        self._upkeep.use(consumer)
        try:
            forget, check = self._pull_consumers.discard, self._upkeep.check
            puller = PullConsumer(self.nc, consumer.stream, consumer.durable, slots, forget, expires, check)
            self._pull_consumers.add(puller)
            async with puller:
                yield puller
        finally:
            self._upkeep.release(consumer)

    @asynccontextmanager
    async def heartbeat(
        self, role: str, id: str, describe: Callable[[], dict[str, Any]]
    ) -> AsyncIterator[HeartbeatPublisher]:
        """Send a heartbeat each second while the block runs; ``describe`` gives `Heartbeat`'s other fields."""
        publisher = HeartbeatPublisher(self.nc, role, id, lambda: self._describe(describe()))
        self.heartbeats.append(publisher)
        async with publish_heartbeats(publisher):
            yield publisher

    def _describe(self, fields: dict[str, Any]) -> dict[str, Any]:
        problem = self.problem or self.storage_problem
        return {**fields, "status": {**fields.get("status", {}), "bus": problem}} if problem else fields

    def fleet(self, role: str) -> Fleet:
        """Open a live view of the processes of a role (``*``: of any); an async context manager."""
        return Fleet(self.nc, role)

    async def _run_upkeep(self) -> None:
        self._connection.fail(await self._upkeep.run())

    def _on_reconnect(self) -> None:
        for pull_consumer in self._pull_consumers:
            pull_consumer.reset_requests()
        self._upkeep.check()
