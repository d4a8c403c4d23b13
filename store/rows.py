"""Events into rows, table by table. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from schemas import attributes
from schemas.attempts import standing
from schemas.codec import DecodeError
from schemas.events import (
    Alarm,
    DeadLetter,
    Event,
    ModelCall,
    Span,
    SpanBatch,
    TaskPublished,
    TrainingStep,
    WeightApplied,
    WeightVersion,
)

Row = dict[str, Any]
"""Column names to values."""


def rows_of(event: Event, stream_sequence: int) -> Iterator[tuple[str, Row]]:
    """(table, row) of everything an event says; raises `DecodeError` for an event the store does not keep."""
    match event:
        case SpanBatch():
            yield from _of_batch(event, stream_sequence)
        case TaskPublished():
            yield from _of_task(event)
        case TrainingStep():
            yield from _of_step(event)
        case WeightVersion():
            yield "raw_weight_versions", _of_version(event)
        case WeightApplied():
            yield (
                "raw_weight_applied",
                {
                    "node": event.node,
                    "model": event.model,
                    "version": event.version,
                    "fetch_seconds": event.fetch_seconds,
                    "pause_seconds": event.pause_seconds,
                    "applied": event.applied_ns,
                },
            )
        case Alarm():
            yield (
                "raw_alarms",
                {"role": event.role, "reason": event.reason, "over": event.over, "raised": event.raised_ns},
            )
        case DeadLetter():
            yield (
                "raw_dead_letters",
                {
                    "stream": event.stream,
                    "sequence": event.sequence,
                    "subject": event.subject,
                    "deliveries": event.deliveries,
                    "reason": event.reason,
                    "headers": event.headers,
                    "payload": event.payload,
                    "dead": event.dead_ns,
                },
            )
        case _:
            raise DecodeError(f"{type(event).__name__} is not an event the store keeps")


def _of_batch(batch: SpanBatch, stream_sequence: int) -> Iterator[tuple[str, Row]]:
    whose: Row = {"run": batch.run, "task": batch.task, "rollout": batch.rollout}
    whose |= {"attempt": batch.attempt, "execution": batch.execution}
    for span in batch.spans:
        yield "raw_spans", {**whose, **_of_span(span)}
        if span.call is not None:
            yield "raw_model_calls", {**whose, "mode": batch.mode, **_of_call(span.call, span)}
    if batch.end is not None:
        yield (
            "raw_attempts",
            {
                **whose,
                "sample": batch.sample,
                "samples": batch.samples,
                "mode": batch.mode,
                "agent": batch.agent,
                "runner": batch.runner,
                "standing": standing(batch.end),
                "outcome": batch.end.outcome,
                "reward": batch.end.reward,
                "reward_span": batch.end.reward_span,
                "error": batch.end.error,
                "result": batch.end.result,
                "spans": batch.end.spans,
                "started": batch.end.started_ns,
                "ended": batch.end.ended_ns,
                "stream_sequence": stream_sequence,
            },
        )


def _of_task(published: TaskPublished) -> Iterator[tuple[str, Row]]:
    task, span = published.task, published.span
    whose = {"run": task.run, "task": task.id, "rollout": published.rollout}
    yield "raw_spans", {**whose, "attempt": 0, "execution": "", **_of_span(span)}
    yield (
        "raw_tasks",
        {
            **whose,
            "sample": task.sample,
            "samples": task.samples,
            "mode": task.mode,
            "agent": task.agent,
            "model": task.model,
            "weight_version": task.weight_version,
            "input": _json(task.input),
            "sampling": _json(task.sampling),
            "deadline": task.deadline,
            "max_attempts": task.max_attempts,
            "published": span.start_ns,
        },
    )


def _of_step(step: TrainingStep) -> Iterator[tuple[str, Row]]:
    which = {"run": step.run, "model": step.model, "step": step.step, "epoch": step.epoch, "version": step.version}
    yield (
        "raw_training_steps",
        {
            **which,
            "started": step.started_ns,
            "ended": step.ended_ns,
            "metrics": step.metrics,
            "digest": step.digest,
            "settings": step.settings,
        },
    )
    attempts: dict[str, Row] = {}
    for use in step.uses:
        attempts[use.rollout] = {"task": use.task, "attempt": use.attempt, "execution": use.execution}
        yield (
            "raw_training_uses",
            {
                **which,
                "rollout": use.rollout,
                "task": use.task,
                "attempt": use.attempt,
                "execution": use.execution,
                "outcome": use.outcome,
                "reward": use.reward,
                "advantage": use.advantage,
                "trained": use.trained,
                "reason": use.reason,
                "tokens": use.tokens,
                "staleness_max": use.staleness_max,
                "place": use.place,
                "credit": list(use.credit),
            },
        )
    for span in step.spans:
        rollout = str(span.attributes.get(attributes.ROLLOUT, ""))
        whose = attempts.get(rollout, {"task": "", "attempt": 0, "execution": ""})
        yield "raw_spans", {"run": step.run, **whose, "rollout": rollout, **_of_span(span)}


def _of_version(version: WeightVersion) -> Row:
    return {
        "run": version.run,
        "model": version.model,
        "version": version.version,
        "epoch": version.epoch,
        "parent": version.parent,
        "kind": version.kind,
        "transport": version.transport,
        "step": version.step,
        "bytes": sum(blob.size for blob in version.blobs),
        "created": version.created_ns,
    }


def _of_span(span: Span) -> Row:
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_span_id": span.parent_span_id,
        "name": span.name,
        "kind": span.kind,
        "start": span.start_ns,
        "end": span.end_ns,
        "status": span.status,
        "status_message": span.status_message,
        "scope": span.scope,
        "attributes": {key: attributes.as_text(value) for key, value in span.attributes.items()},
        "resource": {key: attributes.as_text(value) for key, value in span.resource.items()},
        "events": _json(span.events) if span.events else "",
    }


def _of_call(call: ModelCall, span: Span) -> Row:
    versions = [run.version for run in call.versions]
    response = memoryview(call.response_ids).cast("I").tolist()
    expanded = [0] * len(response)
    for run in call.versions:
        expanded[run.start : run.end] = [run.version] * (min(run.end, len(response)) - run.start)
    return {
        "call": call.index,
        "role": call.role,
        "model": call.model,
        "node": call.node,
        "prompt_ids": memoryview(call.prompt_ids).cast("I").tolist(),
        "response_ids": response,
        "logprobs": memoryview(call.logprobs).cast("f").tolist(),
        "token_versions": expanded,
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
        "finish_reason": call.finish_reason,
        "sampling": _json(call.sampling),
        "request": call.request,
        "response": call.response,
        "start": span.start_ns,
        "end": span.end_ns,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
