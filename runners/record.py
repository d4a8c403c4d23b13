"""The record of one attempt: its spans in order, cut into batches for the bus."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from runners.completion import Part
from schemas import attributes, identity
from schemas.codec import encode
from schemas.events import ModelCall, Outcome, RolloutEnd, Span, SpanBatch, Task

BATCH_BYTES = 1_000_000
SCOPE = "lightningbus.runners"


@dataclass
class Attempt:
    """What is known of a running attempt; spans are added as they end."""

    task: Task
    number: int
    runner: str
    started_ns: int = field(default_factory=time.time_ns)
    spans: list[Span] = field(default_factory=list)
    calls: int = 0
    held: int = 0
    """Model calls waiting for a node now."""
    infra: str = ""
    """Why our own side failed a model call; empty while it did not."""

    def __post_init__(self) -> None:
        self.rollout = identity.rollout_id(self.task.id, self.task.sample)
        self.trace_id = identity.trace_id(self.rollout)
        self.root_id = identity.root_span_id(self.rollout, self.number)

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
            request=request,
            response=part.response,
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
        self.spans.append(
            Span(
                trace_id=self.trace_id,
                span_id=identity.span_id(self.rollout, self.number, "call", index),
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
        )

    def batches(self, outcome: Outcome, reward: float | None, error: str, result: str) -> Iterator[SpanBatch]:
        """Everything, the root span first, in batches below about a megabyte; the last one says how it ended."""
        ended_ns = time.time_ns()
        spans = [self._root(outcome, reward, error, ended_ns), *self.spans]
        end = RolloutEnd(
            outcome=outcome,
            reward=reward,
            error=error,
            spans=len(spans),
            started_ns=self.started_ns,
            ended_ns=ended_ns,
            result=result,
        )
        groups = list(_cut(spans))
        for number, group in enumerate(groups):
            yield SpanBatch(
                run=self.task.run,
                task=self.task.id,
                rollout=self.rollout,
                sample=self.task.sample,
                samples=self.task.samples,
                attempt=self.number,
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


def _cut(spans: list[Span]) -> Iterator[list[Span]]:
    group: list[Span] = []
    size = 0
    for span in spans:
        weight = len(encode(span))
        if group and size + weight > BATCH_BYTES:
            yield group
            group, size = [], 0
        group.append(span)
        size += weight
    yield group
