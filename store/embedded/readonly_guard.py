"""Statements allowed to readers of the embedded engine: questions about its data, not about its machine. Pure.

ClickHouse's ``readonly`` is most of it. An embedded engine trusts its own process, so some protection is missing: the
function ``file`` reads any file, INTO OUTFILE writes one, DESCRIBE of a table function opens the file it names, KILL
QUERY ends other clients' queries. So a statement is checked in the form that ClickHouse's own parser gives it.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping

from lightningbus.store.clickhouse.query_limits import INTERACTIVE, QueryLimits

WRITER = "writer"
"""User who may do everything."""
KEY_FILE = "writer.key"
"""Its password, a file in the engine's directory: who can read that can write the data as well."""

READ_STATEMENTS = re.compile(r"(SELECT|WITH|SHOW|EXISTS|EXPLAIN|DESCRIBE)\b")
STRING_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
FORBIDDEN = re.compile(
    r"\b(file|[Pp]ython|eval|OUTFILE|INFILE|PARALLEL WITH|ai[A-Z]\w*|AI[A-Z]\w*)\b|\bDESCRIBE TABLE [\w`.]+\("
)
"""Constructs that readonly allows although they reach beyond the tables."""
FUNCTION_CALL = re.compile(r"`?(\w+)`?\(")
ALLOWED_TABLE_FUNCTIONS = frozenset(
    {
        "format", "generate_series", "generaterandom", "generateseries", "merge", "mergetreeanalyzeindexes",
        "mergetreeindex", "mergetreeprojection", "mergetreetextindex", "null", "numbers", "numbers_mt", "primes",
        "sqlstandardvalues", "values", "view", "viewifpermitted", "zeros", "zeros_mt",
    }
)  # fmt: skip
"""Table functions, in lower case, that reach nothing but tables and what the question itself holds."""
SETTINGS_CLAUSE = re.compile(r"\bSETTINGS\b(?: (\w+ = [\w.']+(?:, \w+ = [\w.']+)*)(?![^ )]))?")
"""SETTINGS in a statement; without its group: other than names with plain values."""
MAX_SETTINGS: QueryLimits = {**INTERACTIVE, "max_threads": os.cpu_count() or 1, "max_block_size": 1_000_000}
"""Settings that a reader may only lower."""
ALLOWED_SETTINGS = frozenset(
    {
        "cast_string_to_dynamic_use_inference", "date_time_input_format", "date_time_output_format", "session_timezone",
        "extremes", "http_write_exception_in_output_format", "join_use_nulls", "log_comment",
        "output_format_arrow_compression_method", "output_format_arrow_low_cardinality_as_dictionary",
        "output_format_arrow_string_as_string", "output_format_binary_write_json_as_string",
        "output_format_json_quote_64bit_integers", "output_format_json_quote_decimals",
        "output_format_json_quote_denormals", "output_format_native_write_json_as_string",
        "output_format_parquet_compression_method", "output_format_parquet_string_as_string", "result_overflow_mode",
    }
)  # fmt: skip
"""Settings a reader may choose: what clients set about an answer's form and number of rows. By name, for some of that
kind name a file (``output_format_schema`` one that is written)."""


class ReadOnlyViolationError(Exception):
    """The statement is not for a reader; the message is in ClickHouse's form."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Code: 164. DB::Exception: {reason}. (READONLY)")


def check_statement(canonical: str, table_functions: Collection[str] = ()) -> None:
    """Raise `ReadOnlyViolationError` unless a statement, as ClickHouse's parser writes it, only reads data.

    ``table_functions`` are the names of those that this ClickHouse has, in lower case.
    """
    if not READ_STATEMENTS.match(canonical):
        raise ReadOnlyViolationError(f"a reader asks and changes nothing, so not {canonical.split(maxsplit=1)[0]}")
    bare = STRING_LITERAL.sub("''", canonical)
    functions = {name for name in FUNCTION_CALL.findall(bare) if name.lower() in table_functions}
    if forbidden := sorted(name for name in functions if name.lower() not in ALLOWED_TABLE_FUNCTIONS):
        raise ReadOnlyViolationError(
            f"a reader reaches tables, and neither files nor addresses: {forbidden[0]} is refused"
        )
    if match := FORBIDDEN.search(bare):
        raise ReadOnlyViolationError(
            f"a reader reaches tables, and neither files nor addresses: {match[0].rstrip('(')} is refused"
        )
    for name, value in _find_settings(bare):
        if name in MAX_SETTINGS:
            if not (value.isdecimal() and 0 < int(value) <= MAX_SETTINGS[name]):
                raise ReadOnlyViolationError(
                    f"a reader may lower {name} from {MAX_SETTINGS[name]}, and not set it to {value}"
                )
        elif name not in ALLOWED_SETTINGS:
            raise ReadOnlyViolationError(f"a reader may not set {name}")


def _find_settings(bare: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of every SETTINGS in a statement whose strings are empty."""
    for clause in SETTINGS_CLAUSE.finditer(bare):
        if clause[1] is None:
            raise ReadOnlyViolationError("a reader sets plain values only")
        for item in clause[1].split(", "):
            name, _, value = item.partition(" = ")
            yield name, value


def restrict_settings(requested: Mapping[str, str]) -> dict[str, str]:
    """Choose the settings of a reader's session, in order: its own, its limits, readonly.

    Raises `ReadOnlyViolationError`. readonly is 2, so that a reader can set what `check_statement` allows: a client
    that sees 1 sets nothing at all.
    """
    allowed: dict[str, str] = {}
    for name, value in requested.items():
        if name in MAX_SETTINGS:
            value_or_zero = int(value) if value.isdecimal() else 0
            allowed[name] = str(
                min(value_or_zero or MAX_SETTINGS[name], MAX_SETTINGS[name])
            )  # 0 is none for ClickHouse
        elif name in ALLOWED_SETTINGS:
            allowed[name] = value
        elif name != "readonly":
            raise ReadOnlyViolationError(f"a reader may not set {name}")
    return (
        allowed | {name: str(value) for name, value in INTERACTIVE.items() if name not in allowed} | {"readonly": "2"}
    )
