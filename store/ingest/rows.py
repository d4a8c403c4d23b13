"""Events into rows, table by table. Pure."""

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from schemas import ids
from schemas.base import Event
from schemas.codec import DecodeError
from schemas.dead_letters import DeadLetter
from schemas.fleet import Alert
from schemas.semconv import attributes
from schemas.spans import ModelCall, Span, SpanBatch
from schemas.tasks import TaskBatchRecord, TaskRecord
from schemas.training import TrainingStep
from schemas.trajectory.attempt_selection import resolution_of
from schemas.weights.events import ReleaseState, SwapLockState, WeightManifest, WeightsActivated

Row = dict[str, Any]
"""Column names to values. All rows of one table have the same columns in the same order."""

MOST_VERSION = 2**32 - 1
PREVIEW = 200
"""Characters of what was asked and answered that are shown in a list."""


@dataclass(frozen=True, slots=True)
class Received:
    """What the store knows of an event beside what it says."""

    sequence: int
    """Of the stream."""
    stored_ns: int
    """When the bus had it."""
    keep_days: Callable[[str], int]
    """Of a run: how long its rows are kept, 0: for ever."""


def rows_of(event: Event, received: Received) -> Iterator[tuple[str, Row]]:
    """(table, row) of everything an event says; raises `DecodeError` for an event the store does not keep."""
    match event:
        case SpanBatch():
            yield from _of_batch(event, received)
        case TaskBatchRecord():
            for one in event.tasks:
                yield from _of_task(one, received)
        case TrainingStep():
            yield from _of_step(event, received)
        case WeightManifest():
            yield "raw_weight_versions", _of_version(event)
        case WeightsActivated():
            yield (
                "raw_weight_applied",
                {
                    "node": event.node,
                    "model": event.model,
                    "version": event.version,
                    "fetch_seconds": event.fetch_seconds,
                    "verify_seconds": event.verify_seconds,
                    "pause_seconds": event.pause_seconds,
                    "applied": event.activated_at_ns,
                },
            )
        case ReleaseState():
            yield from _of_release(event)
        case SwapLockState():
            pass  # of use to nodes, while it lasts
        case Alert():
            yield (
                "raw_alarms",
                {"role": event.role, "reason": event.reason, "over": event.resolved, "raised": event.fired_at_ns},
            )
        case DeadLetter():
            yield (
                "raw_dead_letters",
                {
                    "stream": event.stream,
                    "sequence": event.sequence,
                    "subject": event.subject,
                    "deliveries": event.num_delivered,
                    "reason": event.reason,
                    "headers": event.headers,
                    "payload": event.payload,
                    "dead": event.dead_lettered_at_ns,
                },
            )
        case _:
            raise DecodeError(f"{type(event).__name__} is not an event the store keeps")


def _of_batch(batch: SpanBatch, received: Received) -> Iterator[tuple[str, Row]]:
    whose: Row = {"run": batch.run_id, "task": batch.task_id, "rollout": batch.rollout_id}
    whose |= {"attempt": batch.attempt, "execution": batch.execution_id}
    keep_days = received.keep_days(batch.run_id)
    for span in batch.spans:
        yield (
            "raw_spans",
            _of_span(batch.run_id, batch.task_id, batch.rollout_id, batch.attempt, batch.execution_id, span, keep_days),
        )
        if span.call is not None:
            which = {**whose, "call": span.call.index, "start": span.start_ns, "keep_days": keep_days}
            yield "raw_model_calls", {**which, "mode": batch.mode, "agent": batch.agent, **_of_call(span.call, span)}
            yield "raw_call_contents", {**which, **_contents_of(span.call)}
    if batch.end is not None:
        usage = batch.end.usage
        yield (
            "raw_attempts",
            {
                **whose,
                "trace_id": batch.spans[-1].trace_id if batch.spans else ids.trace_id(batch.rollout_id),
                "sample": batch.sample_index,
                "samples": batch.group_size,
                "mode": batch.mode,
                "agent": batch.agent,
                "runner": batch.runner,
                "standing": resolution_of(batch.end),
                "outcome": batch.end.outcome,
                "reward": batch.end.reward,
                "reward_span": batch.end.reward_span,
                "error": batch.end.error,
                "result": batch.end.result,
                "spans": batch.end.num_spans,
                "calls": usage.num_calls,
                "prompt_tokens": usage.prompt_tokens,
                "response_tokens": usage.response_tokens,
                "truncated": usage.num_truncated,
                "version_min": usage.min_weight_version,
                "version_max": usage.max_weight_version,
                "model_seconds": usage.model_seconds,
                "tool_seconds": usage.tool_seconds,
                "published": batch.end.enqueued_ns,
                "started": batch.end.started_ns,
                "ended": batch.end.ended_ns,
                "stored": received.stored_ns,
                "stream_sequence": received.sequence,
                "keep_days": keep_days,
            },
        )


def _of_task(published: TaskRecord, received: Received) -> Iterator[tuple[str, Row]]:
    task, span = published.task, published.span
    whose = {"run": task.run_id, "task": task.id, "rollout": published.rollout_id}
    keep_days = received.keep_days(task.run_id)
    yield "raw_spans", _of_span(task.run_id, task.id, published.rollout_id, 0, "", span, keep_days)
    yield (
        "raw_tasks",
        {
            **whose,
            "sample": task.sample_index,
            "samples": task.group_size,
            "mode": task.mode,
            "agent": task.agent,
            "model": task.model,
            "weight_version": task.weight_version,
            "input": _json(task.input),
            "sampling": _json(task.sampling_params),
            "deadline": task.deadline,
            "max_attempts": task.max_attempts,
            "published": span.start_ns,
            "keep_days": keep_days,
        },
    )


def _of_step(step: TrainingStep, received: Received) -> Iterator[tuple[str, Row]]:
    which = {"run": step.run_id, "model": step.model, "step": step.step, "epoch": step.epoch, "version": step.version}
    yield (
        "raw_training_steps",
        {
            **which,
            "started": step.started_ns,
            "ended": step.ended_ns,
            "metrics": step.metrics,
            "digest": step.batch_sha256,
            "settings": step.settings,
        },
    )
    attempts: dict[str, tuple[str, int, str]] = {}
    for use in step.rollouts:
        attempts[use.rollout_id] = (use.task_id, use.attempt, use.execution_id)
        yield (
            "raw_training_uses",
            {
                **which,
                "rollout": use.rollout_id,
                "task": use.task_id,
                "attempt": use.attempt,
                "execution": use.execution_id,
                "outcome": use.outcome,
                "reward": use.reward,
                "advantage": use.advantage,
                "trained": use.trained,
                "reason": use.exclusion_reason,
                "tokens": use.tokens,
                "staleness_max": use.max_staleness,
                "place": use.batch_index,
                "credit": list(use.call_advantages),
            },
        )
    for span in step.spans:
        rollout = str(span.attributes.get(attributes.ROLLOUT, ""))
        task, attempt, execution = attempts.get(rollout, ("", 0, ""))
        yield (
            "raw_spans",
            _of_span(step.run_id, task, rollout, attempt, execution, span, received.keep_days(step.run_id)),
        )


def _of_version(version: WeightManifest) -> Row:
    return {
        "run": version.run_id,
        "model": version.model,
        "version": version.version,
        "epoch": version.epoch,
        "parent": version.parent,
        "kind": version.kind,
        "transport": version.transport,
        "step": version.step,
        "bytes": sum(blob.size for blob in version.blobs),
        "created": version.created_at_ns,
    }


def _of_release(release: ReleaseState) -> Iterator[tuple[str, Row]]:
    """What the event adds; what was decided before it came with the events before it."""
    for decision in release.decisions[-1:]:
        yield (
            "raw_weight_decisions",
            {
                "model": release.model,
                "version": decision.version,
                "what": decision.action,
                "who": decision.actor,
                "why": decision.reason,
                "figures": decision.metrics,
                "decided": decision.decided_at_ns,
            },
        )


def _of_span(run: str, task: str, rollout: str, attempt: int, execution: str, span: Span, keep_days: int) -> Row:
    return {  # at once: a row put together from parts takes twice as long, and of no table are there more
        "run": run,
        "task": task,
        "rollout": rollout,
        "attempt": attempt,
        "execution": execution,
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
        "attributes": span.attributes,
        "resource": span.resource,
        "events": _json(span.events) if span.events else "",
        "links": _json(span.links) if span.links else "",
        "keep_days": keep_days,
    }


def _of_call(call: ModelCall, span: Span) -> Row:
    versions = [run.version for run in call.weight_versions]
    logprobs = np.frombuffer(call.logprobs[: len(call.logprobs) // 4 * 4], "<f4")
    new_tokens = len(call.prompt_ids) // 4
    return {
        "span_id": span.span_id,
        "role": call.role,
        "model": call.model,
        "node": call.node,
        "prompt_tokens": new_tokens + sum(length for _, length in call.prompt_prefix_refs),
        "new_tokens": new_tokens,
        "response_tokens": len(call.response_ids) // 4,
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
        "mean_logprob": float(np.add.reduce(logprobs, dtype=np.float64)) / max(len(logprobs), 1),
        "finish_reason": call.finish_reason,
        "sampling": _json(call.sampling_params),
        "asked": _last_said(call.request),
        "answered": _last_said(call.response),
        "end": span.end_ns,
    }


def _contents_of(call: ModelCall) -> Row:
    return {
        "prompt_prefix": call.prompt_prefix_refs,
        "prompt_ids": call.prompt_ids,
        "prompt_sha256": call.prompt_sha256,
        "response_ids": call.response_ids,
        "logprobs": call.logprobs,
        "token_versions": _versions(call),
        "pieces": call.token_texts,
        "request_prefix": call.request_prefix_refs,
        "request": call.request,
        "response": call.response,
    }


def _versions(call: ModelCall) -> bytes:
    """``u32[T]``: the version of each response token, 0 where none is said."""
    found = bytearray(len(call.response_ids))
    for run in call.weight_versions:
        if run.version > MOST_VERSION:
            raise DecodeError(f"a token of version {run.version}: they are counted to {MOST_VERSION}")
        end = min(run.end * 4, len(found))
        found[run.start * 4 : end] = struct.pack("<I", run.version) * max(end // 4 - run.start, 0)
    return bytes(found)


_JSON = msgspec.json.Encoder(enc_hook=repr)
CONTENT = re.compile(r'"(?:content|prompt|text)": ?("[^"\\]*(?:\\.[^"\\]*)*")')


def _last_said(text: str) -> str:
    """The beginning of the last message in a piece of JSON; of any other text, its own beginning."""
    found = text[text.rfind('"content"') :] if '"content"' in text else text
    if match := CONTENT.search(found[: 8 * PREVIEW] + '"'):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(match[1], type=str)[:PREVIEW]
    return text[:PREVIEW]


def _json(value: Any) -> str:
    return _JSON.encode(value).decode()
