"""A table row, and what the store knows of a message beside its event. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""Column names to values. All rows of one table have the same columns in the same order."""


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """Metadata of a message: its position on the bus, and the retention of its rows."""

    sequence: int
    """Sequence number in the stream."""
    stored_ns: int
    """Time at which the bus received it."""
    retention_days: Callable[[str], int]
    """Days the rows of a run are kept, 0: forever."""
