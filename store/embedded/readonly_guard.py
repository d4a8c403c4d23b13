"""What readers of the embedded engine may say: questions about what is in it, not about the machine it is on. Pure.

ClickHouse's ``readonly`` is most of it. An engine in one's own process trusts whoever asks, so it is not all there:
the function ``file`` reads any file, INTO OUTFILE writes one, DESCRIBE of a table function opens what it names, KILL
QUERY ends the questions of others. So a statement is looked at as ClickHouse's own parser understood it.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping

from store.clickhouse.query_limits import PEOPLE, Limits

WRITER = "writer"
"""User who may do everything."""
KEY_FILE = "writer.key"
"""Its password, a file in the engine's directory: who can read that can write the data as well."""

ASKS = re.compile(r"(SELECT|WITH|SHOW|EXISTS|EXPLAIN|DESCRIBE)\b")
LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
OUTSIDE = re.compile(
    r"\b(file|[Pp]ython|eval|OUTFILE|INFILE|PARALLEL WITH|ai[A-Z]\w*|AI[A-Z]\w*)\b|\bDESCRIBE TABLE [\w`.]+\("
)
"""What readonly lets through though it reaches further than the tables."""
CALLED = re.compile(r"`?(\w+)`?\(")
HARMLESS_TABLES = frozenset(
    {
        "format", "generate_series", "generaterandom", "generateseries", "merge", "mergetreeanalyzeindexes",
        "mergetreeindex", "mergetreeprojection", "mergetreetextindex", "null", "numbers", "numbers_mt", "primes",
        "sqlstandardvalues", "values", "view", "viewifpermitted", "zeros", "zeros_mt",
    }
)  # fmt: skip
"""Table functions, in lower case, that reach nothing but tables and what the question itself holds."""
CLAUSE = re.compile(r"\bSETTINGS\b(?: (\w+ = [\w.']+(?:, \w+ = [\w.']+)*)(?![^ )]))?")
"""SETTINGS in a statement; without its group: other than names with plain values."""
MOST: Limits = {**PEOPLE, "max_threads": os.cpu_count() or 1, "max_block_size": 1_000_000}
"""Settings that a reader may only lower."""
HARMLESS = frozenset(
    {
        "cast_string_to_dynamic_use_inference", "date_time_input_format", "date_time_output_format", "session_timezone",
        "join_use_nulls", "log_comment",
        "output_format_arrow_compression_method", "output_format_arrow_low_cardinality_as_dictionary",
        "output_format_arrow_string_as_string", "output_format_binary_write_json_as_string",
        "output_format_json_quote_64bit_integers", "output_format_json_quote_decimals",
        "output_format_json_quote_denormals", "output_format_native_write_json_as_string",
        "output_format_parquet_compression_method", "output_format_parquet_string_as_string",
    }
)  # fmt: skip
"""Settings a reader may choose: what clients set about an answer's form. By name, for some of that kind name a file
(``output_format_schema`` one that is written)."""


class Refused(Exception):
    """The statement is not for a reader; the message is in ClickHouse's form."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Code: 164. DB::Exception: {why}. (READONLY)")


def admit(canonical: str, table_functions: Collection[str] = ()) -> None:
    """Raise `EngineRejected` unless a statement, as ClickHouse's parser writes it, is a question about the data.

    ``table_functions`` are the names of those that this ClickHouse has, in lower case.
    """
    if not ASKS.match(canonical):
        raise Refused(f"a reader asks and changes nothing, so not {canonical.split(maxsplit=1)[0]}")
    bare = LITERAL.sub("''", canonical)
    called = {name for name in CALLED.findall(bare) if name.lower() in table_functions}
    if reaches := sorted(name for name in called if name.lower() not in HARMLESS_TABLES):
        raise Refused(f"a reader reaches tables, and neither files nor addresses: {reaches[0]} is refused")
    if found := OUTSIDE.search(bare):
        raise Refused(f"a reader reaches tables, and neither files nor addresses: {found[0].rstrip('(')} is refused")
    for name, value in _settings_in(bare):
        if name in MOST:
            if not (value.isdecimal() and 0 < int(value) <= MOST[name]):
                raise Refused(f"a reader may lower {name} from {MOST[name]}, and not set it to {value}")
        elif name not in HARMLESS:
            raise Refused(f"a reader may not set {name}")


def _settings_in(bare: str) -> Iterator[tuple[str, str]]:
    """Names and values of every SETTINGS in a statement whose strings are empty."""
    for clause in CLAUSE.finditer(bare):
        if clause[1] is None:
            raise Refused("a reader sets plain values only")
        for item in clause[1].split(", "):
            name, _, value = item.partition(" = ")
            yield name, value


def settings_of(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a reader's session, in their order: what it chose, its limits, and readonly; raises `EngineRejected`.

    readonly is 2, which leaves a reader to set what `admit` lets through: a client that sees 1 sets nothing at all.
    """
    chosen: dict[str, str] = {}
    for name, value in given.items():
        if name in MOST:
            least = int(value) if value.isdecimal() else 0
            chosen[name] = str(min(least or MOST[name], MOST[name]))  # 0 is none for ClickHouse
        elif name in HARMLESS:
            chosen[name] = value
        elif name != "readonly":
            raise Refused(f"a reader may not set {name}")
    return chosen | {name: str(value) for name, value in PEOPLE.items() if name not in chosen} | {"readonly": "2"}
