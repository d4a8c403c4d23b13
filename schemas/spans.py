"""Events about attempts: their spans, model calls and results."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from lightningbus.schemas.base import (
    MAX_POLICIES,
    MAX_PROMPTS,
    EvaluationName,
    Event,
    Identifier,
    Mode,
    NonNegativeInt,
    Outcome,
    PositiveInt,
    SubjectToken,
)

MAX_ENGINE_ID = 128
MAX_MODEL_NAME = 200
MAX_EXTERNAL_MODELS = 65
MAX_REWARDS = 64
"""Named rewards of one rollout, beside those of `RUNNER_REWARDS`."""
PATCH_APPLIES = "patch_applies"
"""Whether the patch that an agent returned could be applied to its workspace."""
RUNNER_REWARDS = frozenset({PATCH_APPLIES})
"""Names of rewards that runners add to a grader's."""
MAX_ALL_REWARDS = MAX_REWARDS + len(RUNNER_REWARDS)
EngineId = Annotated[str, Meta(max_length=MAX_ENGINE_ID)]

PrefixRef = tuple[NonNegativeInt, NonNegativeInt]
"""(call, length): a prefix of an earlier call's own text, see `lightningbus.schemas.trajectory.prefix_encoding`."""


class VersionSpan(Event, frozen=True, kw_only=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of a response came from ``version``, by one engine."""

    version: NonNegativeInt
    start: NonNegativeInt
    end: NonNegativeInt
    engine_id: EngineId = ""
    """The engine process that sampled them, as its node names it."""


class ModelCall(Event, frozen=True, kw_only=True):
    """One model call, exactly as the engine sampled it."""

    index: NonNegativeInt
    """Position of the call within its attempt, from 0."""
    model: str
    role: str = ""
    """The role of the agent that made the call, from a model name such as ``policy:writer``."""
    node: str
    prompt_prefix_refs: tuple[PrefixRef, ...] = ()
    """Pairs (call index, length). The prompt is, for each pair, the first ``length`` tokens of that call's
    ``prompt_ids`` followed by its ``response_ids``; then come this call's ``prompt_ids``."""
    prompt_ids: bytes
    """``u32[P]``: the prompt's tokens after the prefix."""
    prompt_sha256: bytes = b""
    """SHA-256 of the full prompt as ``u32[]``, prefix included."""
    response_ids: bytes
    """``u32[T]``"""
    logprobs: bytes
    """``f32[T]``: natural log of the probability each response token was sampled with."""
    token_texts: tuple[str, ...] = ()
    """The text of each response token, as the engine returned it; empty if it did not."""
    weight_versions: tuple[VersionSpan, ...]
    prompt_versions: Annotated[dict[SubjectToken, NonNegativeInt], Meta(max_length=MAX_PROMPTS)] = field(
        default_factory=dict
    )
    """Version in the request, by prompt."""
    finish_reason: str = ""
    sampling_params: dict[str, Any] = field(default_factory=dict)
    request_prefix_refs: tuple[PrefixRef, ...] = ()
    """Pairs (call index, length): the same for ``request``, in bytes of UTF-8."""
    request: str = ""
    """The agent's request body, JSON, after the prefix."""
    response: str = ""
    """The choice of the response as the agent received it, JSON."""


class Span(Event, frozen=True, kw_only=True):
    """An OpenTelemetry span; that of a model call carries the call."""

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


class ExternalUsage(Event, frozen=True, kw_only=True):
    """Calls of an attempt to one model that no node answers; its agent counts the tokens, or an endpoint does."""

    num_calls: NonNegativeInt = 0
    num_unpriced_calls: NonNegativeInt = 0
    """Calls among them whose price is not known."""
    prompt_tokens: NonNegativeInt = 0
    response_tokens: NonNegativeInt = 0
    cost: float = 0.0
    """Price of the others."""


class Usage(Event, frozen=True, kw_only=True):
    """Resources that an attempt used."""

    num_calls: NonNegativeInt = 0
    prompt_tokens: NonNegativeInt = 0
    """Sum over all calls; a repeated history counts each time."""
    response_tokens: NonNegativeInt = 0
    num_truncated: NonNegativeInt = 0
    """Calls that ended at a length limit."""
    min_weight_version: NonNegativeInt | None = None
    max_weight_version: NonNegativeInt | None = None
    """The oldest and the newest weight version that sampled a token of the task's model."""
    newest_versions: Annotated[dict[str, NonNegativeInt], Meta(max_length=MAX_POLICIES)] = field(default_factory=dict)
    """Newest weight version that sampled a token, by model."""
    model_seconds: float = 0.0
    """Time with an open model call."""
    tool_seconds: float = 0.0
    """Time with a running tool, by its spans, and no open model call."""
    external_models: Annotated[
        dict[Annotated[str, Meta(max_length=MAX_MODEL_NAME)], ExternalUsage], Meta(max_length=MAX_EXTERNAL_MODELS)
    ] = field(default_factory=dict)
    """Calls to models that no node answers, by model: of endpoints, or by spans of the agent."""

    @property
    def num_external_calls(self) -> int:
        """Calls to models that no node answers."""
        return sum(each.num_calls for each in self.external_models.values())

    @property
    def num_unpriced_calls(self) -> int:
        """Calls among them whose price is not known."""
        return sum(each.num_unpriced_calls for each in self.external_models.values())

    @property
    def external_cost(self) -> float:
        """Price of the others."""
        return sum(each.cost for each in self.external_models.values())


class AttemptResult(Event, frozen=True, kw_only=True):
    """Result of an attempt; part of its last batch."""

    outcome: Outcome
    is_final: bool = True
    """False: the task is redelivered, and another attempt follows."""
    reward: float | None = None
    rewards: Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=MAX_ALL_REWARDS)] = field(
        default_factory=dict
    )
    """Rewards by name, where the agent gave several: one for each policy, or for each criterion."""
    reward_span: str = ""
    """Id of the span that the reward was read from; empty if the agent returned the reward."""
    error: str = ""
    num_spans: NonNegativeInt
    """Over all batches of the attempt."""
    usage: Usage = Usage()
    enqueued_ns: NonNegativeInt = 0
    """Time at which the bus stored the task."""
    started_ns: NonNegativeInt
    ended_ns: NonNegativeInt
    result: str = ""
    """The agent's return value, as JSON."""


class SpanBatch(Event, frozen=True, kw_only=True):
    """Spans of one attempt in order; ``end`` is set on the last batch only."""

    run_id: SubjectToken
    task_id: Identifier
    rollout_id: Identifier
    sample_index: NonNegativeInt
    group_size: PositiveInt
    attempt: PositiveInt
    """Number of this delivery of the task, by the broker's count."""
    execution_id: Identifier
    """Unique per execution of the agent; ``attempt`` may repeat after a crash of the broker."""
    agent: SubjectToken
    mode: Mode
    evaluation: EvaluationName = ""
    runner: str
    sequence: NonNegativeInt
    """Number of this batch within its attempt, from 0."""
    spans: tuple[Span, ...]
    end: AttemptResult | None = None
