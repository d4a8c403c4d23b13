"""Limits of queries, and ClickHouse's errors as sentences. Pure."""

import re
from collections.abc import Mapping

from lightningbus.schemas.text import shorten_line

QueryLimits = Mapping[str, int]

INTERACTIVE: QueryLimits = {
    "max_execution_time": 60,
    "max_rows_to_read": 10_000_000_000,
    "max_bytes_to_read": 1_000_000_000_000,
    "max_result_rows": 1_000_000,
    "max_result_bytes": 1_000_000_000,
    "max_memory_usage": 4_000_000_000,
}
"""Limits of an interactive query: seconds, rows and bytes. A result is complete or an error."""
UI: QueryLimits = {
    "max_execution_time": 10,
    "max_result_rows": 10_000,
    "max_memory_usage": 2_000_000_000,
}
"""Limits of a query by the web page."""
EXCEPTION_MARK = "DB::Exception: "
ERROR_SUFFIX = re.compile(r"(?:\.? \((?:[A-Z_]+|version [^)]*|for url [^)]*)\))+\.?\s*$")
HINTS = {
    "READONLY": "questions only read and set nothing",
    "ACCESS_DENIED": "give --sql a user who may read that",
    "TIMEOUT_EXCEEDED": "ask about one run, or less of it",
    "TOO_MANY_ROWS_OR_BYTES": "add a LIMIT, or ask for fewer columns",
    "TOO_MANY_ROWS": "ask about one run, or less of it",
    "TOO_MANY_BYTES": "ask about one run, or for fewer columns",
    "MEMORY_LIMIT_EXCEEDED": "ask about one run, or for fewer columns",
    "UNKNOWN_TABLE": "has a store of this version written here?",
    "UNKNOWN_DATABASE": "has a store of this version written here?",
}
"""Advice to the user, by ClickHouse's error name."""
TABLE_FUNCTION = "Unknown table function "
TABLE_FUNCTION_HINT = (
    "the view of a report has the defaults of its parameters: `lightningbus report` takes others by --param"
)
ERROR_NAME = re.compile(r"\(([A-Z_]+)\)")


def settings_for(readonly: str, limits: QueryLimits) -> dict[str, int]:
    """Choose the settings to send with each query, by the user's own ``readonly``.

    readonly 1 forbids all but reading, so it is sent last: no setting is allowed after it. A user who has readonly 1
    may set nothing and has its own limits; a user with 2 may set limits, but not readonly.
    """
    match readonly:
        case "0":
            return {**limits, "readonly": 1}
        case "2":
            return dict(limits)
        case _:
            return {}


def is_unreachable(error: Exception) -> bool:
    """Return whether ClickHouse did not answer at all."""
    from clickhouse_connect.driver.exceptions import OperationalError  # imports a whole client

    return isinstance(error, OperationalError) and EXCEPTION_MARK not in str(error)


def explain_error(error: Exception) -> str:
    """Format ClickHouse's error and a hint on one line, without its source location."""
    text = " ".join(str(error).split())
    if is_unreachable(error):
        return "the store does not answer any more"
    message = ERROR_SUFFIX.sub("", text.rsplit(EXCEPTION_MARK, 1)[-1].split(". Stack trace", 1)[0]).rstrip(". ")
    hint = next((HINTS[name] for name in ERROR_NAME.findall(text) if name in HINTS), "")
    hint = TABLE_FUNCTION_HINT if TABLE_FUNCTION in message else hint
    message = shorten_line(message, 400)
    return f"{message}: {hint}" if hint else message
