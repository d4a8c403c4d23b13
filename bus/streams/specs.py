"""The streams and durable consumers, as data. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from lightningbus.bus.streams.sizes import DEFAULT_MIB, MAX_ACK_PENDING, MIB
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Mode

MAX_MESSAGES = 2_000_000
DEDUPLICATION_SECONDS = 600.0
"""Longer than the worst retry of any publisher, so that a retry is never a second message."""
UNLIMITED = -1
MAX_WAITING_RUNNERS = 65_536
"""Runners of one agent that may wait for a task; the server would refuse all but 512, to ask again twice a second."""
ACK_WAIT_SECONDS = 30.0
BUCKET = f"OBJ_{subjects.WEIGHT_BUCKET}"
"""Stream that holds the weights' blobs."""


def _stream(
    name: str, filters: list[str], retention: RetentionPolicy, discard: DiscardPolicy, mib: int | None = None
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=filters,
        retention=retention,
        discard=discard,
        max_msgs=MAX_MESSAGES,
        max_bytes=(mib or DEFAULT_MIB[name]) * MIB,
        storage=StorageType.FILE,
        duplicate_window=DEDUPLICATION_SECONDS,
        allow_direct=True,
    )


STREAMS = (
    # The bound of TASKS is the backpressure: publishers wait when runners are behind.
    _stream(subjects.TASKS, [subjects.ALL_TASKS], RetentionPolicy.WORK_QUEUE, DiscardPolicy.NEW),
    # Each kind of event has a stream of its own: full training rollouts hold up neither evaluations, steps nor alerts.
    _stream(subjects.TRAIN_ROLLOUTS, [subjects.TRAIN_ROLLOUT], RetentionPolicy.INTEREST, DiscardPolicy.NEW),
    _stream(subjects.EVAL_ROLLOUTS, [subjects.EVAL_ROLLOUT], RetentionPolicy.INTEREST, DiscardPolicy.NEW),
    _stream(subjects.EVENTS, [subjects.ALL_EVENTS], RetentionPolicy.INTEREST, DiscardPolicy.NEW),
    # As of TASKS, the bound is the backpressure: runners wait when graders are behind.
    _stream(subjects.GRADING, [subjects.ALL_GRADING_REQUESTS], RetentionPolicy.WORK_QUEUE, DiscardPolicy.NEW),
    # An alert must get through even when nobody reads: the oldest one gives way.
    _stream(subjects.ALERTS, [subjects.ALERT], RetentionPolicy.LIMITS, DiscardPolicy.OLD, 16),
    _stream(
        subjects.WEIGHTS,
        [
            subjects.ALL_WEIGHTS,
            subjects.ALL_ACTIVATIONS,
            subjects.ALL_RELEASES,
            subjects.ALL_SWAP_LOCKS,
            subjects.ALL_AUDITS,
        ],
        RetentionPolicy.LIMITS,
        DiscardPolicy.OLD,
        256,
    ),
    # One message a run: how far its learners have dispatched. The stream says a new count again: learners are in
    # accounts of their own, where they do not hear each other.
    replace(
        _stream(subjects.DISPATCH, [subjects.ALL_DISPATCH_MARKS], RetentionPolicy.LIMITS, DiscardPolicy.OLD, 16),
        max_msgs_per_subject=1,
        republish=RePublish(src=subjects.ALL_DISPATCH_MARKS, dest=subjects.dispatched("{{wildcard(1)}}")),
    ),
    # Prompts apart from weights: runners may look into this one, and a busy training run pushes no prompt out.
    _stream(
        subjects.PROMPTS,
        [subjects.ALL_PROMPTS, subjects.ALL_PROMPT_RELEASES],
        RetentionPolicy.LIMITS,
        DiscardPolicy.OLD,
        256,
    ),
    _stream(subjects.DLQ, [subjects.ALL_DLQ], RetentionPolicy.LIMITS, DiscardPolicy.OLD, 512),
    _stream(subjects.AUDIT, [subjects.API_ADVISORY], RetentionPolicy.LIMITS, DiscardPolicy.OLD, 64),
    # A bucket, as nats-py's Object Store makes one: who writes weights then needs no right to make streams.
    StreamConfig(
        name=BUCKET,
        subjects=[f"$O.{subjects.WEIGHT_BUCKET}.{part}.>" for part in "CM"],
        discard=DiscardPolicy.NEW,
        max_bytes=UNLIMITED,
        storage=StorageType.FILE,
        allow_rollup_hdrs=True,
        allow_direct=True,
    ),
)


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable pull consumer; ``filter`` is a subject, ``ack_wait`` is in seconds."""

    stream: str
    durable: str
    filter_subject: str
    ack: AckPolicy = AckPolicy.EXPLICIT
    ack_wait: float = ACK_WAIT_SECONDS
    max_waiting: int | None = None
    """Requests that may wait at once; None: the server's own number, 512."""
    max_ack_pending: int = MAX_ACK_PENDING
    """Messages that may be delivered and not acknowledged; then the broker delivers no more."""

    def config(self) -> ConsumerConfig:
        """Build the whole configuration: nats-py drops unknown fields when it reads one back."""
        return ConsumerConfig(
            name=self.durable,  # with a name the filter is part of the request's subject, so rights can say which
            durable_name=self.durable,
            filter_subject=self.filter_subject,
            ack_policy=self.ack,
            ack_wait=self.ack_wait,
            max_deliver=UNLIMITED,
            max_ack_pending=self.max_ack_pending,
            max_waiting=self.max_waiting,
        )


STORE_TRAIN = ConsumerSpec(subjects.TRAIN_ROLLOUTS, subjects.STORE, subjects.TRAIN_ROLLOUT)
STORE_EVAL = ConsumerSpec(subjects.EVAL_ROLLOUTS, subjects.STORE, subjects.EVAL_ROLLOUT)
STORE_EVENTS = ConsumerSpec(subjects.EVENTS, subjects.STORE, subjects.ALL_EVENTS)
STORE_ALERTS = ConsumerSpec(subjects.ALERTS, subjects.STORE, subjects.ALERT)
STORE_WEIGHTS = ConsumerSpec(subjects.WEIGHTS, subjects.STORE, ">")
STORE_PROMPTS = ConsumerSpec(subjects.PROMPTS, subjects.STORE, ">")
STORE_DLQ = ConsumerSpec(subjects.DLQ, subjects.STORE, subjects.ALL_DLQ)
STORE_AUDIT = ConsumerSpec(subjects.AUDIT, subjects.STORE, subjects.API_ADVISORY)

GRADERS = ConsumerSpec(subjects.GRADING, subjects.GRADERS, subjects.ALL_GRADING_REQUESTS)

STORE_CONSUMERS = (
    STORE_TRAIN,
    STORE_EVAL,
    STORE_EVENTS,
    STORE_ALERTS,
    STORE_WEIGHTS,
    STORE_PROMPTS,
    STORE_DLQ,
    STORE_AUDIT,
)
DEFAULT_POLICIES = (subjects.DEFAULT_POLICY,)


def learner_consumer(model: str) -> ConsumerSpec:
    """Name the durable of the learner that trains a model.

    The learner acknowledges up to its checkpoint and is reset to it on start: redelivery by time must not interfere.
    """
    return ConsumerSpec(
        subjects.TRAIN_ROLLOUTS,
        subjects.learner_durable(model),
        subjects.TRAIN_ROLLOUT,
        AckPolicy.ALL,
        ack_wait=3600.0,
    )


def durable_consumers(policies: Iterable[str] = DEFAULT_POLICIES) -> tuple[ConsumerSpec, ...]:
    """List the durables to create before the first publish: an interest stream drops unsubscribed messages."""
    return (*STORE_CONSUMERS, GRADERS, *map(learner_consumer, policies))


def rollout_consumers(policies: Iterable[str]) -> tuple[ConsumerSpec, ...]:
    """List the readers that may hold up runners: a full stream waits for all of them."""
    return (*map(learner_consumer, policies), STORE_TRAIN, STORE_EVAL)


def runner_consumer(agent: str, mode: str, ack_wait: float = ACK_WAIT_SECONDS) -> ConsumerSpec:
    """Describe the durable of a mode that all runners of one agent share; they decide how often a task is retried."""
    durable, filter = subjects.runner_durable(agent, mode), subjects.task(mode, agent)
    return ConsumerSpec(subjects.TASKS, durable, filter, ack_wait=ack_wait, max_waiting=MAX_WAITING_RUNNERS)


def runner_consumers(agent: str, ack_wait: float = ACK_WAIT_SECONDS) -> tuple[ConsumerSpec, ...]:
    """Describe the durables of all modes that runners of an agent share."""
    return tuple(runner_consumer(agent, mode, ack_wait) for mode in get_args(Mode))


def provision_options(consumer: ConsumerSpec) -> str:
    """Build the options of `lightningbus provision` for a durable of runners; empty for a built-in one."""
    if consumer.stream == subjects.TRAIN_ROLLOUTS and consumer.ack == AckPolicy.ALL:
        return f" --policy {subjects.model_of_durable(consumer.durable)}"
    if consumer.stream != subjects.TASKS:
        return ""
    agent = consumer.filter_subject.rpartition(".")[2]
    return f" --agent {agent}" + (f" --ack-wait {consumer.ack_wait:g}" if consumer.ack_wait != ACK_WAIT_SECONDS else "")


@dataclass(frozen=True, slots=True)
class StreamState:
    """The current state of a stream."""

    name: str
    created_at: str
    """Creation time: it sets a stream apart from a later one of the same name."""
    first_seq: int
    """Sequence of its first message, or of the next one if there is none."""
    last_seq: int
    """Sequence of the last message it ever had."""
    num_messages: int
    num_bytes: int
    max_messages: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """A consumer's remaining work, in messages."""

    num_delivered: int
    """Deliveries to all readers since the consumer was made or reset: the number of the last one."""
    num_ack_pending: int
    num_pending: int
    max_ack_pending: int

    @property
    def num_unacknowledged(self) -> int:
        """Messages that no reader has acknowledged, delivered or not."""
        return self.num_ack_pending + self.num_pending


def missing_stream_error(name: str) -> str:
    """Explain how to create a missing stream or its durables."""
    return f"stream {name} is missing: run `lightningbus provision`"
