"""Rows of audits and verdicts. Pure."""

from collections.abc import Iterator

import msgspec

from lightningbus.schemas.audits.events import AuditState, RolloutAudit
from lightningbus.store.ingest.rows.row import Row


def rollout_audit_row(audit: RolloutAudit) -> Row:
    """Build the row of one audited call."""
    row = msgspec.structs.asdict(audit)
    row["audited_at"] = row.pop("audited_at_ns")
    return row


def verdict_rows(state: AuditState) -> Iterator[tuple[str, Row]]:
    """Yield the row of the new verdict; the earlier ones came with earlier events."""
    for verdict in state.verdicts[-1:]:
        row = msgspec.structs.asdict(verdict)
        row["decided_at"] = row.pop("decided_at_ns")
        yield "raw_audit_verdicts", {"model": state.model, **row}
