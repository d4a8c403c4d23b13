"""Rows of reviews. Pure."""

import msgspec

from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.store.ingest.rows.row import Row


def review_row(event: RolloutReviewed) -> Row:
    """Build the row of one review."""
    row = msgspec.structs.asdict(event)
    row["reviewed_at"] = row.pop("reviewed_at_ns")
    return row
