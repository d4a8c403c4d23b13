"""The record of one attempt: its spans in order, cut into batches for the bus."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from lightningbus.common.observability import metrics
from lightningbus.common.token_price import TokenPrice
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.runners.recording.external_cost import ExternalCosts
from lightningbus.runners.recording.grading_request import build_grading_request
from lightningbus.runners.recording.refusals import InvalidSpanError, Refusal, Refusals
from lightningbus.runners.recording.usage import UsageMeter
from lightningbus.schemas import ids
from lightningbus.schemas.base import MAX_TIME_NS, Outcome
from lightningbus.schemas.codec import MAX_BYTES, EncodeError, EncodeTooLargeError, encode
from lightningbus.schemas.grading import GradingRequest
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.rewards import extract_rewards
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch
from lightningbus.schemas.tasks import TaskIdentity
from lightningbus.schemas.text import shorten
from lightningbus.schemas.trajectory.prefix_encoding import PrefixEncoder

BATCH_BYTES = 1_000_000
MAX_SPAN_BYTES = MAX_BYTES - BATCH_BYTES
MAX_ATTEMPT_BYTES = 64 * 1024 * 1024
MAX_ATTEMPT_SPANS = 20_000
"""Most spans of one attempt; further ones are counted and dropped."""
MAX_ERROR = 2000
"""Characters of an error that are recorded, and logged."""
MAX_TEXT = 256 * 1024
"""Longest new text of a request, in bytes, or response, in characters, that is kept; the tokens always are."""
SCOPE = "lightningbus.runners"


@dataclass
class AttemptRecorder:
    """State of a running attempt; spans are added as they end."""

    task: TaskIdentity
    number: int
    runner: str
    published_ns: int = 0
    """Time at which the bus stored the task."""
    started_ns: int = field(default_factory=time.time_ns)
    outbox: list[SpanBatch] = field(default_factory=list)
    """Batches the bus does not have yet, in order."""
    grading_request: GradingRequest | None = None
    """Request for a grade that follows the last batch, where graders end the attempt."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while spans are being sent."""
    reward_spans: list[Span] = field(default_factory=list)
    """Spans that carry a reward."""
    dropped_spans: int = 0
    """Spans that could not be kept."""
    history: TokenHistory = field(default_factory=TokenHistory)
    last_nodes: dict[str, str] = field(default_factory=dict)
    """The inference node that answered last, by model: its cache holds the prefix of the next call."""
    last_weight_versions: dict[str, int] = field(default_factory=dict)
    """The weight version that answered last, by model."""
    num_calls_waiting: int = 0
    """Model calls waiting for a node, or for an external endpoint to take them, now."""
    waiting_reason: str = ""
    """Reason why the last of them waits."""
    infra_error: str = ""
    """Reason why our own side failed a model call; empty if it has not."""
    poison_reason: str = ""
    """Reason why no engine should get this attempt's request again; empty while none died of it."""
    full_context: str = ""
    """Error of a call whose prompt filled the context, while no later call was answered; empty: there is none."""
    deadly_requests: dict[bytes, str] = field(default_factory=dict)
    """Requests that are not asked again, by digest, and why."""
    traceparent: str = ""
    """The runner's own span of this attempt, where its traces are exported."""
    is_graded: bool = False
    """Whether graders on the bus give the reward, and so end the attempt."""
    model_prices: Mapping[str, TokenPrice] = field(default_factory=dict)
    """Prices of the models that no node answers, by pattern of their names."""
    output_tail: str = ""
    """The end of what the agent printed; empty also where its process ended with other rollouts in it."""
    unrecordable_reason: str = ""
    """Reason why one of the agent's model calls cannot be recorded; empty while all can."""

    def __post_init__(self) -> None:
        self.rollout = ids.rollout_id(self.task.id, self.task.sample_index)
        self.execution = ids.execution_id(self.rollout, self.number, self.runner, self.started_ns)
        self.trace_id = ids.trace_id(self.rollout)
        self.root_id = ids.root_span_id(self.rollout, self.execution)
        self._meter = UsageMeter(self.task.model)
        self._costs = ExternalCosts(self.model_prices)
        self._prompts, self._requests = PrefixEncoder(), PrefixEncoder(unit=1, limit=MAX_TEXT)
        self._pending: list[Span] = []
        self._pending_bytes = self._bytes = 0
        self._sequence = 0
        self._ids: set[str] = set()
        self._last_request = self._last_response = ""

    @property
    def num_spans(self) -> int:
        """Spans so far, without the root."""
        return len(self._ids)

    @property
    def calls(self) -> int:
        """Model calls so far."""
        return self._meter.num_calls

    def add_engine_failure(self, reason: str, is_deadly: bool) -> None:
        """Record that engines failed at a call; ``is_deadly``: no other attempt should try it."""
        self.infra_error = self.infra_error or reason
        if is_deadly:
            self.poison_reason = self.poison_reason or reason

    def add(self, span: Span) -> Refusal | None:
        """Keep a span, unless it is refused for the reason returned; one that an exporter sends again is kept once."""
        if span.span_id in self._ids:
            return None
        refusal = self._keep(span)
        self._costs.add(span, is_kept=refusal is None)
        if refusal is not None:
            metrics.spans_refused.labels(refusal.kind).inc()
            return refusal
        self._meter.add(span)
        if any(True for _ in extract_rewards(span)):
            self.reward_spans.append(span)
        return None

    def record_refusals(self, refusals: Refusals) -> None:
        """Count spans that were refused before they came here."""
        self.dropped_spans += refusals.total
        for kind, count in refusals.kinds.items():
            metrics.spans_refused.labels(kind).inc(count)

    def _keep(self, span: Span) -> Refusal | None:
        """Put a span into the next batch; returns why it cannot be, or nothing."""
        try:
            size = _measure(span)
            if len(self._ids) >= MAX_ATTEMPT_SPANS or self._bytes + size > MAX_ATTEMPT_BYTES:
                raise InvalidSpanError(
                    "room", f"an attempt may take {MAX_ATTEMPT_SPANS} spans and {MAX_ATTEMPT_BYTES} bytes"
                )
        except InvalidSpanError as error:
            self.dropped_spans += 1
            return error.refusal
        if self._pending and self._pending_bytes + size > BATCH_BYTES:
            self.flush()
        self._pending.append(span)
        self._ids.add(span.span_id)
        self._pending_bytes += size
        self._bytes += size
        return None

    def add_call(
        self,
        part: SampledChoice,
        *,
        node: str,
        role: str,
        request: str,
        started_ns: int,
        ended_ns: int,
        parent: str = "",
        prompt_versions: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Record one sampled choice of a model call, as the engine made it; ``parent`` is the agent's span."""
        index = self.calls
        if self.is_graded:
            self._last_request, self._last_response = _truncate(request), _truncate(part.response)
        prompt = self._prompts.encode(part.prompt_ids, part.response_ids)
        encoded_request = self._requests.encode(request.encode(errors="replace"))
        call = ModelCall(
            index=index,
            model=part.model,
            role=role,
            node=node,
            prompt_prefix_refs=prompt.prefix_refs,
            prompt_ids=prompt.suffix,
            prompt_sha256=prompt.sha256,
            response_ids=part.response_ids,
            logprobs=part.logprobs,
            token_texts=part.token_texts,
            weight_versions=part.weight_versions,
            prompt_versions=dict(prompt_versions),
            finish_reason=part.finish_reason,
            sampling_params=part.sampling,
            request_prefix_refs=encoded_request.prefix_refs,
            request=encoded_request.suffix.decode()
            + (f"… ({encoded_request.truncated_bytes} bytes more)" if encoded_request.truncated_bytes else ""),
            response=_truncate(part.response),
        )
        prompt_tokens, response_tokens = len(part.prompt_ids) // 4, len(part.response_ids) // 4
        span_attributes: dict[str, object] = {
            attributes.OPERATION: "chat",
            attributes.REQUEST_MODEL: part.model if not role else f"{part.model}:{role}",
            attributes.RESPONSE_ID: part.response_id,
            attributes.FINISH_REASONS: part.finish_reason,
        }
        if part.external is None:
            span_attributes |= {
                attributes.PROVIDER: "vllm",
                attributes.RESPONSE_MODEL: part.model,
                attributes.INPUT_TOKENS: prompt_tokens,
                attributes.OUTPUT_TOKENS: response_tokens,
            }
        else:
            span_attributes |= part.external.span_attributes()
        if part.weight_versions:
            span_attributes[attributes.WEIGHT_VERSION] = max(run.version for run in part.weight_versions)
        span = Span(
            trace_id=self.trace_id,
            span_id=ids.span_id(self.rollout, self.execution, "call", index),
            parent_span_id=parent or self.root_id,
            name=f"chat {part.model}",
            kind="client",
            start_ns=started_ns,
            end_ns=ended_ns,
            status="error" if part.missing_tokens else "ok",
            status_message=part.missing_tokens,
            scope=SCOPE,
            attributes=span_attributes,
            call=call,
        )
        self._costs.add_call(span, is_external=part.external is not None)
        self._meter.add_call(call, prompt_tokens, span)
        if part.missing_tokens:
            metrics.calls_without_tokens.inc()
        metrics.tokens.labels("prompt").inc(prompt_tokens)
        metrics.tokens.labels("completion").inc(response_tokens)
        if refusal := self._keep(span):
            size = f"{prompt_tokens} + {response_tokens} tokens"
            self.unrecordable_reason = f"model call {index} of {size} cannot be recorded: {refusal.sentence}"

    def add_external(self, span: Span) -> None:
        """Record a call of an endpoint that samples nothing, such as one for embeddings; its tokens have a price."""
        self._costs.add_call(span, is_external=True)
        self._keep(span)

    def flush(self) -> None:
        """Close the present batch, if it has spans."""
        if self._pending:
            self._batch()

    def finish(
        self,
        outcome: Outcome,
        reward: float | None,
        error: str,
        result: str,
        final: bool = True,
        reward_span: str = "",
        rewards: Mapping[str, float] | None = None,
    ) -> None:
        """Close the last batch, with the root span and the result.

        ``final`` is false where another attempt follows; ``reward_span`` is the span the rewards were read from, if
        any; ``rewards`` are those with a name.
        """
        ended_ns = max(time.time_ns(), self.started_ns)  # a clock may be set back meanwhile
        metrics.attempts.labels(outcome).inc()
        metrics.attempt_duration.observe((ended_ns - self.started_ns) / 1e9)
        if self._pending_bytes > BATCH_BYTES:
            self.flush()
        named = dict(rewards or {})
        self._pending.append(self._root(outcome, reward, named, error, ended_ns))
        end = AttemptResult(
            outcome=outcome,
            is_final=final,
            reward=reward,
            rewards=named,
            reward_span=reward_span,
            error=shorten(error, MAX_ERROR),
            num_spans=self.num_spans + 1,
            usage=replace(self._meter.usage(), external_models=self._costs.settle()),
            enqueued_ns=self.published_ns,
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            result=_truncate(result),
        )
        if not (self.is_graded and final):
            self._batch(end)
            return
        self._batch()
        conversation = (self._last_request, self._last_response) if outcome == "ok" else ("", "")
        self.grading_request = build_grading_request(self.task, self._make_batch(end), *conversation)

    def _batch(self, end: AttemptResult | None = None) -> None:
        self.outbox.append(self._make_batch(end))
        self._sequence += 1
        self._pending, self._pending_bytes = [], 0

    def _make_batch(self, end: AttemptResult | None) -> SpanBatch:
        return SpanBatch(
            run_id=self.task.run_id,
            task_id=self.task.id,
            rollout_id=self.rollout,
            sample_index=self.task.sample_index,
            group_size=self.task.group_size,
            attempt=self.number,
            execution_id=self.execution,
            agent=self.task.agent,
            mode=self.task.mode,
            evaluation=self.task.evaluation,
            runner=self.runner,
            sequence=self._sequence,
            spans=tuple(self._pending),
            end=end,
        )

    def _root(
        self, outcome: Outcome, reward: float | None, rewards: Mapping[str, float], error: str, ended_ns: int
    ) -> Span:
        span_attributes: dict[str, object] = {
            attributes.OPERATION: "invoke_agent",
            attributes.AGENT_NAME: self.task.agent,
            attributes.RUN: self.task.run_id,
            attributes.TASK: self.task.id,
            attributes.ROLLOUT: self.rollout,
            attributes.ATTEMPT: self.number,
            attributes.OUTCOME: outcome,
        }
        if reward is not None:
            span_attributes[attributes.REWARD] = reward
        span_attributes |= {f"{attributes.NAMED_REWARD_PREFIX}{name}": value for name, value in rewards.items()}
        if self.output_tail:
            span_attributes[attributes.AGENT_OUTPUT] = self.output_tail
        if self.dropped_spans:
            span_attributes[attributes.DROPPED_SPANS] = self.dropped_spans
        if outcome != "ok":
            span_attributes[attributes.ERROR_TYPE] = outcome
        return Span(
            trace_id=self.trace_id,
            span_id=self.root_id,
            parent_span_id=ids.publish_span_id(self.rollout),
            name=f"invoke_agent {self.task.agent}",
            kind="internal",
            start_ns=self.started_ns,
            end_ns=ended_ns,
            status="ok" if outcome == "ok" else "error",
            status_message=shorten(error, 500),
            scope=SCOPE,
            attributes=span_attributes,
        )


def _measure(span: Span) -> int:
    """Measure a span's bytes on the wire; raise `InvalidSpanError` for one that cannot be recorded."""
    if span.end_ns > MAX_TIME_NS:
        raise InvalidSpanError("time", f"its time {span.end_ns} ns is after the year 2262")
    try:
        size = len(encode(span))
    except EncodeTooLargeError:
        size = MAX_BYTES
    except EncodeError as error:
        raise InvalidSpanError("form", f"it cannot be written: {error}") from error
    if size > MAX_SPAN_BYTES:
        raise InvalidSpanError("size", f"a span may take {MAX_SPAN_BYTES} bytes")
    return size


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
