"""Cause of a failed insert: ClickHouse, or the rows in it. Pure."""

from enum import Enum

from clickhouse_connect.driver.exceptions import DatabaseError, DataError

VALUE_CODES = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 469})
"""ClickHouse's errors about a value: parsing, conversion, range, size, a constraint."""
TOO_MANY_PARTITIONS = "Too many partitions for single INSERT block"
"""Has the code of too many parts, and another cause: rows of too many months."""
LOAD_CODES = frozenset({159, 160, 173, 201, 202, 203, 209, 210, 241, 252, 290, 319, 394, 439})
"""Timeouts, memory, parts, queries, quotas: load passes, unless one insert is too much by itself."""
STATE_CODES = frozenset({
    8, 10, 16, 20, 47, 57, 60, 74, 75, 76, 77, 81, 87, 88, 95, 164, 192, 193, 194, 195, 218, 225, 236, 242, 243, 285,
    286, 289, 305, 336, 425, 473, 497, 499, 516, 999, 1000, 1001, 1002,
})  # fmt: skip
"""Tables, disks, files, permissions, passwords, read-only tables, replicas, the system below: no row causes these."""


class Cause(Enum):
    """Cause of a failed insert, by its error."""

    ROWS = "rows"
    """ClickHouse rejects a value."""
    STATE = "state"
    """ClickHouse is not there, or cannot write; the insert works once it can."""
    LOAD = "load"
    """ClickHouse has too much to do; the insert most likely works later."""
    UNKNOWN = "unknown"
    """The error does not show the cause."""


def cause_of(error: Exception) -> Cause:
    """Classify the error of an insert."""
    if isinstance(error, DataError):
        return Cause.ROWS
    code = getattr(error, "code", None) or 0
    if not isinstance(error, DatabaseError) or not code:
        return Cause.STATE  # no answer of ClickHouse
    if code in VALUE_CODES or TOO_MANY_PARTITIONS in str(error):
        return Cause.ROWS
    if code in STATE_CODES:
        return Cause.STATE
    return Cause.LOAD if code in LOAD_CODES else Cause.UNKNOWN
