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

MAX_VERSION = 2**32 - 1
PREVIEW_CHARS = 200
"""Characters of a request or response in a list."""


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """What the store knows of a message beside its event."""

    sequence: int
    """Of the stream."""
    stored_ns: int
    """When the bus received it."""
    retention_days: Callable[[str], int]
    """Days the rows of a run are kept, 0: forever."""


def build_rows(event: Event, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    """(table, row) pairs of an event; raises `DecodeError` for an event that the store does not keep."""
    match event:
        case SpanBatch():
            yield from _span_batch_rows(event, metadata)
        case TaskBatchRecord():
            for record in event.tasks:
                yield from _task_rows(record, metadata)
        case TrainingStep():
            yield from _training_step_rows(event, metadata)
        case WeightManifest():
            yield "raw_weight_versions", _weight_version_row(event)
        case WeightsActivated():
            yield (
                "raw_weight_activations",
                {
                    "node": event.node,
                    "model": event.model,
                    "version": event.version,
                    "fetch_seconds": event.fetch_seconds,
                    "verify_seconds": event.verify_seconds,
                    "pause_seconds": event.pause_seconds,
                    "activated_at": event.activated_at_ns,
                },
            )
        case ReleaseState():
            yield from _release_rows(event)
        case SwapLockState():
            pass  # of use to nodes, while it lasts
        case Alert():
            yield (
                "raw_alerts",
                {"role": event.role, "reason": event.reason, "resolved": event.resolved, "fired_at": event.fired_at_ns},
            )
        case DeadLetter():
            yield (
                "raw_dead_letters",
                {
                    "stream": event.stream,
                    "sequence": event.sequence,
                    "subject": event.subject,
                    "num_delivered": event.num_delivered,
                    "reason": event.reason,
                    "headers": event.headers,
                    "payload": event.payload,
                    "dead_lettered_at": event.dead_lettered_at_ns,
                },
            )
        case _:
            raise DecodeError(f"{type(event).__name__} is not an event the store keeps")


def _span_batch_rows(batch: SpanBatch, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    identity: Row = {"run_id": batch.run_id, "task_id": batch.task_id, "rollout_id": batch.rollout_id}
    identity |= {"attempt": batch.attempt, "execution_id": batch.execution_id}
    retention_days = metadata.retention_days(batch.run_id)
    for span in batch.spans:
        yield (
            "raw_spans",
            _span_row(
                batch.run_id, batch.task_id, batch.rollout_id, batch.attempt, batch.execution_id, span, retention_days
            ),
        )
        if span.call is not None:
            key = {**identity, "call": span.call.index, "started_at": span.start_ns, "retention_days": retention_days}
            yield (
                "raw_model_calls",
                {**key, "mode": batch.mode, "agent": batch.agent, **_model_call_row(span.call, span)},
            )
            yield "raw_call_payloads", {**key, **_call_payload_row(span.call)}
    if batch.end is not None:
        usage = batch.end.usage
        yield (
            "raw_attempts",
            {
                **identity,
                "trace_id": batch.spans[-1].trace_id if batch.spans else ids.trace_id(batch.rollout_id),
                "sample_index": batch.sample_index,
                "group_size": batch.group_size,
                "mode": batch.mode,
                "agent": batch.agent,
                "runner": batch.runner,
                "resolution": resolution_of(batch.end),
                "outcome": batch.end.outcome,
                "reward": batch.end.reward,
                "reward_span": batch.end.reward_span,
                "error": batch.end.error,
                "result": batch.end.result,
                "num_spans": batch.end.num_spans,
                "num_calls": usage.num_calls,
                "prompt_tokens": usage.prompt_tokens,
                "response_tokens": usage.response_tokens,
                "num_truncated": usage.num_truncated,
                "min_weight_version": usage.min_weight_version,
                "max_weight_version": usage.max_weight_version,
                "model_seconds": usage.model_seconds,
                "tool_seconds": usage.tool_seconds,
                "enqueued_at": batch.end.enqueued_ns,
                "started_at": batch.end.started_ns,
                "ended_at": batch.end.ended_ns,
                "stored_at": metadata.stored_ns,
                "stream_sequence": metadata.sequence,
                "retention_days": retention_days,
            },
        )


def _task_rows(record: TaskRecord, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    task, span = record.task, record.span
    identity = {"run_id": task.run_id, "task_id": task.id, "rollout_id": record.rollout_id}
    retention_days = metadata.retention_days(task.run_id)
    yield "raw_spans", _span_row(task.run_id, task.id, record.rollout_id, 0, "", span, retention_days)
    yield (
        "raw_tasks",
        {
            **identity,
            "sample_index": task.sample_index,
            "group_size": task.group_size,
            "mode": task.mode,
            "agent": task.agent,
            "model": task.model,
            "weight_version": task.weight_version,
            "input": _json(task.input),
            "sampling_params": _json(task.sampling_params),
            "deadline": task.deadline,
            "max_attempts": task.max_attempts,
            "enqueued_at": span.start_ns,
            "retention_days": retention_days,
        },
    )


def _training_step_rows(step: TrainingStep, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    key = {"run_id": step.run_id, "model": step.model, "step": step.step, "epoch": step.epoch, "version": step.version}
    yield (
        "raw_training_steps",
        {
            **key,
            "started_at": step.started_ns,
            "ended_at": step.ended_ns,
            "metrics": step.metrics,
            "batch_sha256": step.batch_sha256,
            "settings": step.settings,
        },
    )
    attempts: dict[str, tuple[str, int, str]] = {}
    for use in step.rollouts:
        attempts[use.rollout_id] = (use.task_id, use.attempt, use.execution_id)
        yield (
            "raw_training_rollouts",
            {
                **key,
                "rollout_id": use.rollout_id,
                "task_id": use.task_id,
                "attempt": use.attempt,
                "execution_id": use.execution_id,
                "outcome": use.outcome,
                "reward": use.reward,
                "advantage": use.advantage,
                "trained": use.trained,
                "exclusion_reason": use.exclusion_reason,
                "tokens": use.tokens,
                "max_staleness": use.max_staleness,
                "batch_index": use.batch_index,
                "call_advantages": list(use.call_advantages),
            },
        )
    for span in step.spans:
        rollout = str(span.attributes.get(attributes.ROLLOUT, ""))
        task, attempt, execution = attempts.get(rollout, ("", 0, ""))
        yield (
            "raw_spans",
            _span_row(step.run_id, task, rollout, attempt, execution, span, metadata.retention_days(step.run_id)),
        )


def _weight_version_row(version: WeightManifest) -> Row:
    return {
        "run_id": version.run_id,
        "model": version.model,
        "version": version.version,
        "epoch": version.epoch,
        "parent": version.parent,
        "kind": version.kind,
        "transport": version.transport,
        "step": version.step,
        "bytes": sum(blob.size for blob in version.blobs),
        "created_at": version.created_at_ns,
    }


def _release_rows(release: ReleaseState) -> Iterator[tuple[str, Row]]:
    """What the event adds; what was decided before it came with the events before it."""
    for decision in release.decisions[-1:]:
        yield (
            "raw_release_decisions",
            {
                "model": release.model,
                "version": decision.version,
                "action": decision.action,
                "actor": decision.actor,
                "reason": decision.reason,
                "metrics": decision.metrics,
                "decided_at": decision.decided_at_ns,
            },
        )


def _span_row(run: str, task: str, rollout: str, attempt: int, execution: str, span: Span, retention_days: int) -> Row:
    return {  # at once: a row put together from parts takes twice as long, and of no table are there more
        "run_id": run,
        "task_id": task,
        "rollout_id": rollout,
        "attempt": attempt,
        "execution_id": execution,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_span_id": span.parent_span_id,
        "name": span.name,
        "kind": span.kind,
        "started_at": span.start_ns,
        "ended_at": span.end_ns,
        "status": span.status,
        "status_message": span.status_message,
        "scope": span.scope,
        "attributes": span.attributes,
        "resource": span.resource,
        "events": _json(span.events) if span.events else "",
        "links": _json(span.links) if span.links else "",
        "retention_days": retention_days,
    }


def _model_call_row(call: ModelCall, span: Span) -> Row:
    versions = [run.version for run in call.weight_versions]
    logprobs = np.frombuffer(call.logprobs[: len(call.logprobs) // 4 * 4], "<f4")
    new_tokens = len(call.prompt_ids) // 4
    return {
        "span_id": span.span_id,
        "role": call.role,
        "model": call.model,
        "node": call.node,
        "prompt_tokens": new_tokens + sum(length for _, length in call.prompt_prefix_refs),
        "prompt_suffix_tokens": new_tokens,
        "response_tokens": len(call.response_ids) // 4,
        "min_weight_version": min(versions, default=None),
        "max_weight_version": max(versions, default=None),
        "mean_logprob": float(np.add.reduce(logprobs, dtype=np.float64)) / max(len(logprobs), 1),
        "finish_reason": call.finish_reason,
        "sampling_params": _json(call.sampling_params),
        "request_preview": _last_message_preview(call.request),
        "response_preview": _last_message_preview(call.response),
        "ended_at": span.end_ns,
    }


def _call_payload_row(call: ModelCall) -> Row:
    return {
        "prompt_prefix_refs": call.prompt_prefix_refs,
        "prompt_ids": call.prompt_ids,
        "prompt_sha256": call.prompt_sha256,
        "response_ids": call.response_ids,
        "logprobs": call.logprobs,
        "token_versions": _pack_token_versions(call),
        "token_texts": call.token_texts,
        "request_prefix_refs": call.request_prefix_refs,
        "request": call.request,
        "response": call.response,
    }


def _pack_token_versions(call: ModelCall) -> bytes:
    """``u32[T]``: the version of each response token, 0 where none is said."""
    versions = bytearray(len(call.response_ids))
    for run in call.weight_versions:
        if run.version > MAX_VERSION:
            raise DecodeError(f"a token of version {run.version}: they are counted to {MAX_VERSION}")
        end = min(run.end * 4, len(versions))
        versions[run.start * 4 : end] = struct.pack("<I", run.version) * max(end // 4 - run.start, 0)
    return bytes(versions)


_JSON = msgspec.json.Encoder(enc_hook=repr)
CONTENT = re.compile(r'"(?:content|prompt|text)": ?("[^"\\]*(?:\\.[^"\\]*)*")')


def _last_message_preview(text: str) -> str:
    """The beginning of the last message in a piece of JSON; of any other text, its own beginning."""
    tail = text[text.rfind('"content"') :] if '"content"' in text else text
    if match := CONTENT.search(tail[: 8 * PREVIEW_CHARS] + '"'):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(match[1], type=str)[:PREVIEW_CHARS]
    return text[:PREVIEW_CHARS]


def _json(value: Any) -> str:
    return _JSON.encode(value).decode()
