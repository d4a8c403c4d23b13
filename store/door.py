"""What readers of the embedded engine may say: questions about what is in it, not about the machine it is on. Pure.

ClickHouse's ``readonly`` is most of it. An engine in one's own process trusts whoever asks, so it is not all there:
the function ``file`` reads any file, INTO OUTFILE writes one, DESCRIBE of a table function opens what it names, KILL
QUERY ends the questions of others. So a statement is looked at as ClickHouse's own parser understood it.
"""

import re
from collections.abc import Mapping

from store.limits import PEOPLE

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
HARMLESS = re.compile(
    r"output_format_\w+|date_time_output_format|session_timezone|max_threads|max_block_size|join_use_nulls|log_comment"
)
"""Settings a reader may choose, beside limits lower than its own."""


class Refused(Exception):
    """The statement is not for a reader; the message is in ClickHouse's form."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Code: 164. DB::Exception: {why}. (READONLY)")


def admit(canonical: str) -> None:
    """Raise `Refused` unless a statement, as ClickHouse's parser writes it, is a question about the data."""
    if not ASKS.match(canonical):
        raise Refused(f"a reader asks and changes nothing, so not {canonical.split(maxsplit=1)[0]}")
    if found := OUTSIDE.search(LITERAL.sub("''", canonical)):
        raise Refused(f"a reader reaches tables, and neither files nor addresses: {found[0].rstrip('(')} is refused")


def settings_of(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a reader's session, in their order: what it chose, its limits, and readonly; raises `Refused`."""
    chosen: dict[str, str] = {}
    for name, value in given.items():
        if name in PEOPLE:
            least = int(value) if value.isdecimal() else 0
            chosen[name] = str(min(least or PEOPLE[name], PEOPLE[name]))  # 0 is none for ClickHouse
        elif HARMLESS.fullmatch(name):
            chosen[name] = value
        elif name != "readonly":
            raise Refused(f"a reader may not set {name}")
    return chosen | {name: str(value) for name, value in PEOPLE.items() if name not in chosen} | {"readonly": "1"}
