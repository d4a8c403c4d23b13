"""Rows of weight versions, their releases and activations. Pure."""

from collections.abc import Iterator

from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseState, WeightManifest, WeightsActivated
from lightningbus.store.ingest.rows.row import Row


def weight_version_row(version: WeightManifest) -> Row:
    """Build the row of a published version."""
    return {
        "run_id": version.run_id,
        "model": version.model,
        "version": version.version,
        "epoch": version.epoch,
        "parent": version.parent,
        "change": version.change,
        "kind": version.kind,
        "transport": version.transport,
        "step": version.step,
        "bytes": sum(blob.size for blob in version.blobs),
        "created_at": version.created_at_ns,
    }


def weight_activation_row(event: WeightsActivated) -> Row:
    """Build the row of an activation: its time, and the duration of each part."""
    return {
        "node": event.node,
        "model": event.model,
        "version": event.version,
        "fetch_seconds": event.fetch_seconds,
        "verify_seconds": event.verify_seconds,
        "pause_seconds": event.pause_seconds,
        "kv_cache": event.kv_cache,
        "activated_at": event.activated_at_ns,
    }


def release_rows(release: ReleaseState) -> Iterator[tuple[str, Row]]:
    """Yield the row of the new decision; the earlier ones came with earlier events."""
    for decision in release.decisions[-1:]:
        yield "raw_release_decisions", {"model": release.model, **decision_fields(decision)}


def decision_fields(decision: ReleaseDecision) -> Row:
    """Build the columns of any decision."""
    return {
        "version": decision.version,
        "action": decision.action,
        "actor": decision.actor,
        "reason": decision.reason,
        "metrics": decision.metrics,
        "decided_at": decision.decided_at_ns,
    }
