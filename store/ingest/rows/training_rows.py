"""Rows of training steps, of the rollouts in them, and of decisions about tasks. Pure."""

from collections.abc import Iterator

import msgspec

from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.training import TaskDecision, TrainingStep
from lightningbus.store.ingest.rows.row import EventMetadata, Row
from lightningbus.store.ingest.rows.span_batch_rows import span_row


def training_step_rows(step: TrainingStep, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    """Yield rows of a step, of its rollouts and of its spans."""
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
                "call_roles": use.call_roles,
                "call_tokens": use.call_tokens,
                "version_tokens": dict(use.version_tokens),
            },
        )
    for span in step.spans:
        rollout = str(span.attributes.get(attributes.ROLLOUT, ""))
        task, attempt, execution = attempts.get(rollout, ("", 0, ""))
        retention_days = metadata.retention_days(step.run_id)
        yield (
            "raw_spans",
            span_row(step.run_id, task, rollout, attempt, execution, span, metadata.stored_ns, retention_days),
        )


def task_decision_row(event: TaskDecision) -> Row:
    """Build the row of a decision about the group of a task."""
    row = msgspec.structs.asdict(event)
    row["decided_at"] = row.pop("decided_at_ns")
    return row
