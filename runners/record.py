"""The record of one attempt: its spans in order, cut into batches for the bus."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from runners.history import History
from runners.part import Part
from schemas import attributes, identity
from schemas.codec import MAX_BYTES, EncodeError, encode
from schemas.events import ModelCall, Outcome, RolloutEnd, Span, SpanBatch, TaskKey

BATCH_BYTES = 1_000_000
MAX_SPAN_BYTES = MAX_BYTES - BATCH_BYTES
MAX_ATTEMPT_BYTES = 64 * 1024 * 1024
MAX_ATTEMPT_SPANS = 20_000
"""What one attempt may hold in memory; spans beyond it are counted and dropped."""
MAX_TEXT = 256 * 1024
"""Longest request or response kept as text, in characters; its tokens are always kept."""
SCOPE = "lightningbus.runners"


@dataclass
class Attempt:
    """What is known of a running attempt; spans are added as they end."""

    task: TaskKey
    number: int
    runner: str
    started_ns: int = field(default_factory=time.time_ns)
    spans: list[Span] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    dropped: int = 0
    """Spans that found no room."""
    calls: int = 0
    history: History = field(default_factory=History)
    node: str = ""
    """The inference node that answered last: its cache holds the prefix of the next call."""
    held: int = 0
    """Model calls waiting for a node now."""
    infra: str = ""
    """Why our own side failed a model call; empty while it did not."""
    unrecordable: str = ""
    """Why a model call of the agent's cannot be recorded; empty while all are."""

    def __post_init__(self) -> None:
        self.rollout = identity.rollout_id(self.task.id, self.task.sample)
        self.execution = identity.execution_id(self.rollout, self.number, self.runner, self.started_ns)
        self.trace_id = identity.trace_id(self.rollout)
        self.root_id = identity.root_span_id(self.rollout, self.execution)
        self._bytes = 0
        self._ids: set[str] = set()

    def add(self, span: Span) -> bool:
        """Keep a span, if there is room for it; one that an exporter sends again is kept once."""
        if span.span_id in self._ids:
            return True
        try:
            size = len(encode(span))
        except EncodeError:
            size = MAX_BYTES
        full = len(self.spans) >= MAX_ATTEMPT_SPANS or self._bytes + size > MAX_ATTEMPT_BYTES
        if full or size > MAX_SPAN_BYTES:
            self.dropped += 1
            return False
        self.spans.append(span)
        self.sizes.append(size)
        self._ids.add(span.span_id)
        self._bytes += size
        return True

    def add_call(self, part: Part, *, node: str, role: str, request: str, started_ns: int, ended_ns: int) -> None:
        """One sampled choice of one model call, as the engine made it."""
        index = self.calls
        self.calls += 1
        call = ModelCall(
            index=index,
            model=part.model,
            role=role,
            node=node,
            prompt_ids=part.prompt_ids,
            response_ids=part.response_ids,
            logprobs=part.logprobs,
            versions=part.versions,
            finish_reason=part.finish_reason,
            sampling=part.sampling,
            request=_kept(request),
            response=_kept(part.response),
        )
        said: dict[str, object] = {
            attributes.OPERATION: "chat",
            attributes.PROVIDER: "vllm",
            attributes.REQUEST_MODEL: part.model if not role else f"{part.model}:{role}",
            attributes.RESPONSE_MODEL: part.model,
            attributes.RESPONSE_ID: part.response_id,
            attributes.FINISH_REASONS: part.finish_reason,
            attributes.INPUT_TOKENS: len(part.prompt_ids) // 4,
            attributes.OUTPUT_TOKENS: len(part.response_ids) // 4,
        }
        if part.versions:
            said[attributes.WEIGHT_VERSION] = max(run.version for run in part.versions)
        span = Span(
            trace_id=self.trace_id,
            span_id=identity.span_id(self.rollout, self.execution, "call", index),
            parent_span_id=self.root_id,
            name=f"chat {part.model}",
            kind="client",
            start_ns=started_ns,
            end_ns=ended_ns,
            status="ok",
            scope=SCOPE,
            attributes=said,
            call=call,
        )
        if not self.add(span):
            self.unrecordable = (
                f"model call {index} of {len(part.prompt_ids) // 4} + {len(part.response_ids) // 4} tokens cannot be "
                f"recorded: a call may take {MAX_SPAN_BYTES} bytes, an attempt {MAX_ATTEMPT_BYTES}"
            )

    def batches(
        self,
        outcome: Outcome,
        reward: float | None,
        error: str,
        result: str,
        final: bool = True,
        reward_span: str = "",
    ) -> Iterator[SpanBatch]:
        """Everything, the root span first, in batches below about a megabyte; the last one says how it ended.

        ``final`` is false where another attempt follows; ``reward_span`` is the span the reward was read from, if any.
        """
        ended_ns = max(time.time_ns(), self.started_ns)  # a clock may be set back meanwhile
        spans = [self._root(outcome, reward, error, ended_ns), *self.spans]
        end = RolloutEnd(
            outcome=outcome,
            final=final,
            reward=reward,
            reward_span=reward_span,
            error=error,
            spans=len(spans),
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            result=_kept(result),
        )
        groups = list(_cut(spans, [0, *self.sizes]))
        for number, group in enumerate(groups):
            yield SpanBatch(
                run=self.task.run,
                task=self.task.id,
                rollout=self.rollout,
                sample=self.task.sample,
                samples=self.task.samples,
                attempt=self.number,
                execution=self.execution,
                agent=self.task.agent,
                mode=self.task.mode,
                runner=self.runner,
                sequence=number,
                spans=tuple(group),
                end=end if number == len(groups) - 1 else None,
            )

    def _root(self, outcome: Outcome, reward: float | None, error: str, ended_ns: int) -> Span:
        said: dict[str, object] = {
            attributes.OPERATION: "invoke_agent",
            attributes.AGENT_NAME: self.task.agent,
            attributes.RUN: self.task.run,
            attributes.TASK: self.task.id,
            attributes.ROLLOUT: self.rollout,
            attributes.ATTEMPT: self.number,
            attributes.OUTCOME: outcome,
        }
        if reward is not None:
            said[attributes.REWARD] = reward
        if self.dropped:
            said[attributes.DROPPED] = self.dropped
        if outcome != "ok":
            said[attributes.ERROR_TYPE] = outcome
        return Span(
            trace_id=self.trace_id,
            span_id=self.root_id,
            parent_span_id=identity.publish_span_id(self.rollout),
            name=f"invoke_agent {self.task.agent}",
            kind="internal",
            start_ns=self.started_ns,
            end_ns=ended_ns,
            status="ok" if outcome == "ok" else "error",
            status_message=error[:500],
            scope=SCOPE,
            attributes=said,
        )


def _cut(spans: list[Span], sizes: list[int]) -> Iterator[list[Span]]:
    group: list[Span] = []
    total = 0
    for span, size in zip(spans, sizes, strict=True):
        if group and total + size > BATCH_BYTES:
            yield group
            group, total = [], 0
        group.append(span)
        total += size
    yield group


def _kept(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
