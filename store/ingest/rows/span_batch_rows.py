"""Rows of tasks, attempts and spans. Pure."""

from collections.abc import Iterator

from lightningbus.schemas import ids
from lightningbus.schemas.semconv.attributes import to_json
from lightningbus.schemas.spans import Span, SpanBatch
from lightningbus.schemas.tasks import TaskRecord
from lightningbus.schemas.trajectory.attempt_selection import resolution_of
from lightningbus.store.ingest.rows.call_rows import call_payload_row, model_call_row
from lightningbus.store.ingest.rows.row import EventMetadata, Row


def span_batch_rows(batch: SpanBatch, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    """Yield rows of the spans and model calls of a batch and, for the last batch, of the attempt."""
    identity: Row = {"run_id": batch.run_id, "task_id": batch.task_id, "rollout_id": batch.rollout_id}
    identity |= {"attempt": batch.attempt, "execution_id": batch.execution_id}
    retention_days = metadata.retention_days(batch.run_id)
    for span in batch.spans:
        yield (
            "raw_spans",
            span_row(
                batch.run_id,
                batch.task_id,
                batch.rollout_id,
                batch.attempt,
                batch.execution_id,
                span,
                metadata.stored_ns,
                retention_days,
            ),
        )
        if span.call is not None:
            key = {**identity, "call": span.call.index, "started_at": span.start_ns, "retention_days": retention_days}
            yield (
                "raw_model_calls",
                {**key, "mode": batch.mode, "agent": batch.agent, **model_call_row(span.call, span)},
            )
            yield "raw_call_payloads", {**key, **call_payload_row(span.call)}
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
                "evaluation": batch.evaluation,
                "agent": batch.agent,
                "runner": batch.runner,
                "resolution": resolution_of(batch.end),
                "outcome": batch.end.outcome,
                "reward": batch.end.reward,
                "rewards": batch.end.rewards,
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
                "newest_versions": usage.newest_versions,
                "model_seconds": usage.model_seconds,
                "tool_seconds": usage.tool_seconds,
                "num_external_calls": usage.num_external_calls,
                "num_unpriced_calls": usage.num_unpriced_calls,
                "external_cost": usage.external_cost,
                "external_models": usage.external_models,
                "enqueued_at": batch.end.enqueued_ns,
                "started_at": batch.end.started_ns,
                "ended_at": batch.end.ended_ns,
                "stored_at": metadata.stored_ns,
                "stream_sequence": metadata.sequence,
                "retention_days": retention_days,
            },
        )


def task_rows(record: TaskRecord, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    """Yield the row of a published task and that of its producer span."""
    task, span = record.task, record.span
    identity = {"run_id": task.run_id, "task_id": task.id, "rollout_id": record.rollout_id}
    retention_days = metadata.retention_days(task.run_id)
    yield (
        "raw_spans",
        span_row(task.run_id, task.id, record.rollout_id, 0, "", span, metadata.stored_ns, retention_days),
    )
    yield (
        "raw_tasks",
        {
            **identity,
            "sample_index": task.sample_index,
            "group_size": task.group_size,
            "mode": task.mode,
            "evaluation": task.evaluation,
            "agent": task.agent,
            "model": task.model,
            "weight_versions": task.weight_versions,
            "role_models": task.role_models,
            "prompt_versions": task.prompt_versions,
            "input": to_json(task.input),
            "sampling_params": to_json(task.sampling_params),
            "labels": task.labels,
            "reward_name": task.reward_name,
            "deadline": task.deadline,
            "max_attempts": task.max_attempts,
            "enqueued_at": span.start_ns,
            "retention_days": retention_days,
        },
    )


def span_row(
    run_id: str,
    task_id: str,
    rollout_id: str,
    attempt: int,
    execution_id: str,
    span: Span,
    stored_ns: int,
    retention_days: int,
) -> Row:
    """Build the row of a span. One dict literal: most rows are spans, and merging dicts takes twice as long."""
    return {
        "run_id": run_id,
        "task_id": task_id,
        "rollout_id": rollout_id,
        "attempt": attempt,
        "execution_id": execution_id,
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
        "events": to_json(span.events) if span.events else "",
        "links": to_json(span.links) if span.links else "",
        "stored_at": stored_ns,
        "retention_days": retention_days,
    }
