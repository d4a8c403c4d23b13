"""Events about attempts: their spans, model calls and results."""

from typing import Any, Literal

from msgspec import field

from schemas.base import Event, Identifier, Mode, NonNegativeInt, Outcome, PositiveInt, SubjectToken

PrefixRef = tuple[NonNegativeInt, NonNegativeInt]
"""(call, length): so much of the beginning of a call's own part, see `prefixes`."""


class VersionSpan(Event, frozen=True, kw_only=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of a response came from ``version``."""

    version: NonNegativeInt
    start: NonNegativeInt
    end: NonNegativeInt


class ModelCall(Event, frozen=True, kw_only=True):
    """What one model call was, exactly as the engine sampled it."""

    index: NonNegativeInt
    """Order of the call within its attempt."""
    model: str
    role: str = ""
    """The agent's part that asked, from a model name such as ``policy:writer``."""
    node: str
    prompt_prefix_refs: tuple[PrefixRef, ...] = ()
    """What the prompt repeats of earlier calls, in tokens; their own parts are new prompt tokens and response."""
    prompt_ids: bytes
    """``u32[P]``: the prompt's tokens after the prefix."""
    prompt_sha256: bytes = b""
    """Of the whole prompt as ``u32[]``, prefix included."""
    response_ids: bytes
    """``u32[T]``"""
    logprobs: bytes
    """``f32[T]``: natural log of the probability each response token was sampled with."""
    token_texts: tuple[str, ...] = ()
    """The text of each response token, as the engine wrote it; empty if it did not."""
    weight_versions: tuple[VersionSpan, ...]
    finish_reason: str = ""
    sampling_params: dict[str, Any] = field(default_factory=dict)
    request_prefix_refs: tuple[PrefixRef, ...] = ()
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
    start_ns: NonNegativeInt
    end_ns: NonNegativeInt
    status: Literal["unset", "ok", "error"] = "unset"
    status_message: str = ""
    scope: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)
    events: tuple[dict[str, Any], ...] = ()
    links: tuple[dict[str, Any], ...] = ()
    call: ModelCall | None = None


class Usage(Event, frozen=True, kw_only=True):
    """What an attempt took."""

    num_calls: NonNegativeInt = 0
    """Model calls."""
    prompt_tokens: NonNegativeInt = 0
    """Of all calls, a history that is repeated counting each time."""
    response_tokens: NonNegativeInt = 0
    num_truncated: NonNegativeInt = 0
    """Calls that ended at a length."""
    min_weight_version: NonNegativeInt | None = None
    max_weight_version: NonNegativeInt | None = None
    """The oldest and the newest weight version that made a token."""
    model_seconds: float = 0.0
    """Time in which a model call was open."""
    tool_seconds: float = 0.0
    """Time in which a tool was at work and no model call open, by its spans."""


class AttemptResult(Event, frozen=True, kw_only=True):
    """How an attempt ended: the last thing said about it."""

    outcome: Outcome
    is_final: bool = True
    """False: the task was given back, and another attempt follows."""
    reward: float | None = None
    reward_span: str = ""
    """The span the reward was read from, where the agent gave it by none but a span."""
    error: str = ""
    num_spans: NonNegativeInt
    """How many spans the attempt had over all its batches."""
    usage: Usage = Usage()
    enqueued_ns: NonNegativeInt = 0
    """When the bus had the task."""
    started_ns: NonNegativeInt
    ended_ns: NonNegativeInt
    result: str = ""
    """What the agent returned, JSON."""


class SpanBatch(Event, frozen=True, kw_only=True):
    """Spans of one attempt in order; ``end`` is set on the last batch only."""

    run_id: SubjectToken
    task_id: Identifier
    rollout_id: Identifier
    sample_index: NonNegativeInt
    group_size: PositiveInt
    attempt: PositiveInt
    """Which delivery of the task this was, by the broker's count."""
    execution_id: Identifier
    """Which run of the agent: unique, where a broker that came back from a crash may count a delivery twice."""
    agent: SubjectToken
    mode: Mode
    runner: str
    sequence: NonNegativeInt
    """Number of this batch within its attempt, from 0."""
    spans: tuple[Span, ...]
    end: AttemptResult | None = None
