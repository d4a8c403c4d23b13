"""The events on the wire: frozen structs, each a MessagePack map keyed by field name.

Numeric arrays travel as raw little-endian bytes, so that a reader maps them without a copy:
token ids as ``u32`` and log-probabilities as ``f32``. Times are Unix nanoseconds.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""A name that is also one token of a subject: letters, digits, ``_`` and ``-``."""

Identifier = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Mode = Literal["train", "eval"]
Outcome = Literal["ok", "agent_error", "timeout", "infra", "poisoned", "cancelled"]


Piece = tuple[Count, Count]
"""(call, length): so much of the beginning of a call's own part, see `prefixes`."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything that is sent; unknown fields are ignored, so newer writers may add some.

    A field that has its default is left out.
    """


class TaskKey(Event, frozen=True, kw_only=True):
    """Which rollout a task is: what can be read even of a task that cannot be used."""

    id: Identifier
    run: Name
    agent: Name
    sample: Count = 0
    samples: Positive = 1
    mode: Mode = "train"


class Task(TaskKey, frozen=True, kw_only=True):
    """One sample of one problem for one agent; publishing ``n`` samples makes ``n`` of these.

    The task is GRPO's group; a (task, sample) pair is a *rollout*; one delivery is an *attempt*.
    """

    input: Any
    deadline: Seconds = 60.0
    max_attempts: Positive = 3
    earlier_attempts: Count = 0
    """Deliveries before it was replayed from the dead letters: attempts go on counting from here."""
    model: Name = "policy"
    weight_version: Count | None = None
    """Serve every model call of this rollout from exactly this version; ``None``: whatever is current."""
    sampling: dict[str, Any] = {}
    """Sampling settings forced on every model call, e.g. ``{"temperature": 0}`` for greedy evaluation."""


class VersionRun(Event, frozen=True, kw_only=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of a response came from ``version``."""

    version: Count
    start: Count
    end: Count


class ModelCall(Event, frozen=True, kw_only=True):
    """What one model call was, exactly as the engine sampled it."""

    index: Count
    """Order of the call within its attempt."""
    model: str
    role: str = ""
    """The agent's part that asked, from a model name such as ``policy:writer``."""
    node: str
    prompt_prefix: tuple[Piece, ...] = ()
    """What the prompt repeats of earlier calls, in tokens; their own parts are new prompt tokens and response."""
    prompt_ids: bytes
    """``u32[P]``: the prompt's tokens after the prefix."""
    prompt_sha256: bytes = b""
    """Of the whole prompt as ``u32[]``, prefix included."""
    response_ids: bytes
    """``u32[T]``"""
    logprobs: bytes
    """``f32[T]``: natural log of the probability each response token was sampled with."""
    pieces: tuple[str, ...] = ()
    """The text of each response token, as the engine wrote it; empty if it did not."""
    versions: tuple[VersionRun, ...]
    finish_reason: str = ""
    sampling: dict[str, Any] = {}
    request_prefix: tuple[Piece, ...] = ()
    """What the request repeats of earlier calls' ``request``, in bytes of UTF-8."""
    request: str = ""
    """The agent's request body, JSON, after the prefix."""
    response: str = ""
    """The answer's choice as the agent saw it, JSON."""


class Span(Event, frozen=True, kw_only=True):
    """An OpenTelemetry span; a model call adds its typed part."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str
    kind: Literal["internal", "server", "client", "producer", "consumer"] = "internal"
    start_ns: Count
    end_ns: Count
    status: Literal["unset", "ok", "error"] = "unset"
    status_message: str = ""
    scope: str = ""
    attributes: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    events: tuple[dict[str, Any], ...] = ()
    links: tuple[dict[str, Any], ...] = ()
    call: ModelCall | None = None


class Usage(Event, frozen=True, kw_only=True):
    """What an attempt took."""

    calls: Count = 0
    """Model calls."""
    prompt_tokens: Count = 0
    """Of all calls, a history that is repeated counting each time."""
    response_tokens: Count = 0
    truncated: Count = 0
    """Calls that ended at a length."""
    version_min: Count | None = None
    version_max: Count | None = None
    """The oldest and the newest weight version that made a token."""
    model_seconds: float = 0.0
    """Time in which a model call was open."""
    tool_seconds: float = 0.0
    """Time in which a tool was at work and no model call open, by its spans."""


class RolloutEnd(Event, frozen=True, kw_only=True):
    """How an attempt ended: the last thing said about it."""

    outcome: Outcome
    final: bool = True
    """False: the task was given back, and another attempt follows."""
    reward: float | None = None
    reward_span: str = ""
    """The span the reward was read from, where the agent gave it by none but a span."""
    error: str = ""
    spans: Count
    """How many spans the attempt had over all its batches."""
    usage: Usage = Usage()
    published_ns: Count = 0
    """When the bus had the task."""
    started_ns: Count
    ended_ns: Count
    result: str = ""
    """What the agent returned, JSON."""


class SpanBatch(Event, frozen=True, kw_only=True):
    """Spans of one attempt in order; ``end`` is set on the last batch only."""

    run: Name
    task: Identifier
    rollout: Identifier
    sample: Count
    samples: Positive
    attempt: Positive
    """Which delivery of the task this was, by the broker's count."""
    execution: Identifier
    """Which run of the agent: unique, where a broker that came back from a crash may count a delivery twice."""
    agent: Name
    mode: Mode
    runner: str
    sequence: Count
    """Number of this batch within its attempt, from 0."""
    spans: tuple[Span, ...]
    end: RolloutEnd | None = None


class TaskPublished(Event, frozen=True, kw_only=True):
    """A task was accepted by the bus; its PRODUCER span opens the rollout's trace."""

    task: Task
    rollout: Identifier
    span: Span


class TasksPublished(Event, frozen=True, kw_only=True):
    """Tasks that were published together."""

    tasks: tuple[TaskPublished, ...]


class Heartbeat(Event, frozen=True, kw_only=True):
    """What a process is doing, sent every second and forgotten."""

    role: Literal["store", "learner", "inference", "runner", "publisher", "supervisor"]
    id: str
    run: str = ""
    state: str
    """Inference nodes: a state of `bus.fleet.node_state`; others: what they do now."""
    pid: Count = 0
    address: str = ""
    """Where an inference node can be reached: ``http://host:port``."""
    model: str = ""
    version: Count | None = None
    detail: dict[str, Any] = {}
    sent_ns: Count


class Alarm(Event, frozen=True, kw_only=True):
    """Something stands still, or goes on again."""

    role: Literal["store", "learner", "inference", "runner", "publisher"]
    """Who starves, or what is missing."""
    reason: str
    over: bool = False
    """The alarm before it is no longer true."""
    raised_ns: Count


class DeadLetter(Event, frozen=True, kw_only=True):
    """A message nobody could use, with the reason, kept whole."""

    stream: Name
    subject: str
    sequence: Count
    deliveries: Count
    reason: str
    headers: dict[str, str]
    payload: bytes
    dead_ns: Count
