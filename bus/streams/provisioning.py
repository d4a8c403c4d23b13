"""Make streams and durable consumers, or find them as they should be; read what they are now."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServerError, ServiceUnavailableError

from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.refusals import explain_refusal, is_lasting
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.bus.streams.specs import (
    DEFAULT_POLICIES,
    STREAMS,
    UNLIMITED,
    Backlog,
    ConsumerSpec,
    StreamState,
    durable_consumers,
)


@dataclass(slots=True)
class ProvisionReport:
    """Streams by name, and durables as ``STREAM/DURABLE``, that `provision` checked, created and changed."""

    streams: set[str] = field(default_factory=set)
    durables: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def describe(self) -> str:
        """Describe it in one line."""
        checked = f"checked {len(self.streams)} streams and {len(self.durables)} durables"
        if self.created == self.streams | self.durables:
            return f"{checked}: all are new"
        changed = sorted(self.changed - self.created)
        parts = [
            f"{what} {', '.join(sorted(names))}"
            for what, names in (("created", self.created), ("changed", changed))
            if names
        ]
        return f"{checked}: {'; '.join(parts) or 'nothing was missing, and nothing changed'}"


async def get_backlog(js: JetStreamContext, consumer: ConsumerSpec) -> Backlog:
    """Return a consumer's remaining work; raise `NotFoundError` if it does not exist."""
    info = await js.consumer_info(consumer.stream, consumer.durable)
    return Backlog(
        num_delivered=info.delivered.consumer_seq if info.delivered is not None else 0,
        num_ack_pending=info.num_ack_pending or 0,
        num_pending=info.num_pending or 0,
        max_ack_pending=info.config.max_ack_pending or UNLIMITED,
    )


async def get_stream_state(js: JetStreamContext, name: str) -> StreamState:
    """Return the current state of a stream; raise `NotFoundError` if there is none."""
    info = await js.stream_info(name)
    state, config = info.state, info.config
    return StreamState(
        name=name,
        created_at=info.created.isoformat() if info.created is not None else "",
        first_seq=max(1, state.first_seq) if state.messages else state.last_seq + 1,
        last_seq=state.last_seq,
        num_messages=state.messages,
        num_bytes=state.bytes,
        max_messages=config.max_msgs or UNLIMITED,
        max_bytes=config.max_bytes or UNLIMITED,
    )


async def ensure_stream(js: JetStreamContext, config: StreamConfig) -> bool:
    """Create the stream, or bring an existing one to this configuration; return whether it had another."""
    try:
        await js.add_stream(config)
    except BadRequestError as error:
        if error.err_code != 10058:  # stream name already in use with a different configuration
            raise
        await js.update_stream(config)
        return True
    return False


Existing = Literal["missing", "different", "same"]
"""State of a durable before it was made or changed."""


async def ensure_consumer(js: JetStreamContext, consumer: ConsumerSpec) -> Existing:
    """Create the durable, or bring an existing one to this configuration; return what there was.

    One that has it is left alone. So it needs no right to make consumers where an admin has made them.
    """
    existing: Existing = "missing"
    with suppress(NotFoundError):
        if _matches((await js.consumer_info(consumer.stream, consumer.durable)).config, consumer.config()):
            return "same"
        existing = "different"
    try:
        await js.add_consumer(consumer.stream, _normalize_filter(consumer.config()))
    except ServerError as error:
        if "max waiting" not in str(error.description):  # a server never changes it later
            raise
        await js.add_consumer(consumer.stream, _normalize_filter(replace(consumer, max_waiting=None).config()))
    return existing


def _matches(stored: ConsumerConfig, wanted: ConsumerConfig) -> bool:
    """Return whether a durable already has the wanted configuration; ``max_waiting`` cannot change and is ignored."""
    filters = (stored.filter_subject or ">", wanted.filter_subject or ">")
    fields = ("ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "deliver_subject")
    return filters[0] == filters[1] and all(getattr(stored, field) == getattr(wanted, field) for field in fields)


def _normalize_filter(config: ConsumerConfig) -> ConsumerConfig:
    """Drop a filter that matches the whole stream, as the server does."""
    return config if config.filter_subject != ">" else config.evolve(filter_subject=None)


async def provision(
    js: JetStreamContext,
    replicas: int | None,
    sizes: StreamSizes | None = None,
    more: Iterable[ConsumerSpec] = (),
    policies: Iterable[str] = DEFAULT_POLICIES,
    report: ProvisionReport | None = None,
) -> None:
    """Create all streams, then all durables that must exist before the first publish, and ``more``; safe to repeat.

    ``policies`` are the models that learners train. ``replicas`` None, and sizes missing from ``sizes``, leave existing
    streams unchanged. ``report`` gets what was done. Raises `BusError` for a stream that the server refuses.
    """
    sizes, report = sizes or StreamSizes(), report or ProvisionReport()
    existing = {stream.name or "": await _config_of(js, stream.name or "") for stream in STREAMS}
    configs = [_build_config(existing[stream.name or ""], stream, replicas, sizes) for stream in STREAMS]
    num_bytes = sum(max(0, config.max_bytes or 0) for config in configs)
    for config in configs:
        name = config.name or ""
        report.streams.add(name)
        try:
            was_different = await ensure_stream(js, config)
        except APIError as error:
            if isinstance(error, ServiceUnavailableError) and not is_lasting(error):  # a cluster without a leader
                raise
            raise BusError(f"stream {config.name} cannot be made: {explain_refusal(error, num_bytes)}") from error
        if existing[name] is None:
            report.created.add(name)
        elif was_different:
            report.changed.add(name)
    for consumer in durable_consumers(policies):
        pending = None
        if consumer.ack == AckPolicy.ALL:  # a learner's
            pending = sizes.max_ack_pending or await _max_ack_pending(js, consumer)
        wanted = replace(consumer, max_ack_pending=pending or consumer.max_ack_pending)
        _note(report, consumer, await ensure_consumer(js, wanted))
    for consumer in more:
        _note(report, consumer, await ensure_consumer(js, consumer))


def _note(report: ProvisionReport, consumer: ConsumerSpec, existing: Existing) -> None:
    name = f"{consumer.stream}/{consumer.durable}"
    report.durables.add(name)
    if existing == "missing":
        report.created.add(name)
    elif existing == "different":
        report.changed.add(name)


def _build_config(
    existing: StreamConfig | None, stream: StreamConfig, replicas: int | None, sizes: StreamSizes
) -> StreamConfig:
    now = existing or stream
    return replace(
        stream,
        num_replicas=replicas or now.num_replicas or 1,
        max_bytes=sizes.bytes_of(stream.name or "") or now.max_bytes,
    )


async def _config_of(js: JetStreamContext, stream: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(stream)).config
    except NotFoundError:
        return None


async def _max_ack_pending(js: JetStreamContext, consumer: ConsumerSpec) -> int | None:
    try:
        return (await get_backlog(js, consumer)).max_ack_pending
    except NotFoundError:
        return None
