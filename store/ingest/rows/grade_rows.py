"""Rows of grades. Pure."""

import msgspec

from lightningbus.schemas.grading import RolloutGraded
from lightningbus.store.ingest.rows.row import Row


def grade_row(event: RolloutGraded) -> Row:
    """Build the row of one grade."""
    row = msgspec.structs.asdict(event)
    for name in ("started_at", "graded_at"):
        row[name] = row.pop(f"{name}_ns")
    return row
