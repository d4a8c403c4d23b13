"""Turns events into rows, table by table. Pure."""

from collections.abc import Iterator

from lightningbus.schemas.audits.events import AuditState, RolloutAudit
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Alert
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import TaskBatchRecord
from lightningbus.schemas.training import TaskDecision, TrainingStep
from lightningbus.schemas.weights.events import ReleaseState, SwapLockState, WeightManifest, WeightsActivated
from lightningbus.store.ingest.rows.grade_rows import grade_row
from lightningbus.store.ingest.rows.prompt_rows import prompt_decision_rows, prompt_version_row
from lightningbus.store.ingest.rows.review_rows import review_row
from lightningbus.store.ingest.rows.rollout_audit_rows import rollout_audit_row, verdict_rows
from lightningbus.store.ingest.rows.row import EventMetadata, Row
from lightningbus.store.ingest.rows.span_batch_rows import span_batch_rows, task_rows
from lightningbus.store.ingest.rows.training_rows import task_decision_row, training_step_rows
from lightningbus.store.ingest.rows.weight_rows import release_rows, weight_activation_row, weight_version_row


def build_rows(event: Event, metadata: EventMetadata) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) pairs of an event; raise `DecodeError` for an event that the store does not keep."""
    match event:
        case SpanBatch():
            yield from span_batch_rows(event, metadata)
        case TaskBatchRecord():
            for record in event.tasks:
                yield from task_rows(record, metadata)
        case TrainingStep():
            yield from training_step_rows(event, metadata)
        case TaskDecision():
            yield "raw_task_decisions", task_decision_row(event)
        case WeightManifest():
            yield "raw_weight_versions", weight_version_row(event)
        case WeightsActivated():
            yield "raw_weight_activations", weight_activation_row(event)
        case ReleaseState():
            yield from release_rows(event)
        case PromptVersion():
            yield "raw_prompt_versions", prompt_version_row(event)
        case PromptReleaseState():
            yield from prompt_decision_rows(event)
        case RolloutAudit():
            yield "raw_rollout_audits", rollout_audit_row(event)
        case RolloutGraded():
            yield "raw_grades", grade_row(event)
        case RolloutReviewed():
            yield "raw_reviews", review_row(event)
        case AuditState():
            yield from verdict_rows(event)
        case SwapLockState():
            pass  # only nodes use it, while it lasts
        case Alert():
            yield "raw_alerts", _alert_row(event)
        case DeadLetter():
            yield "raw_dead_letters", _dead_letter_row(event)
        case _:
            raise DecodeError(f"{type(event).__name__} is not an event the store keeps")


def _alert_row(event: Alert) -> Row:
    return {"role": event.role, "reason": event.reason, "resolved": event.resolved, "fired_at": event.fired_at_ns}


def _dead_letter_row(event: DeadLetter) -> Row:
    return {
        "stream": event.stream,
        "sequence": event.sequence,
        "subject": event.subject,
        "num_delivered": event.num_delivered,
        "reason": event.reason,
        "headers": event.headers,
        "payload": event.payload,
        "dead_lettered_at": event.dead_lettered_at_ns,
    }
