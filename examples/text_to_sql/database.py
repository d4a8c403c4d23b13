"""SQLite databases as a stranger's queries may touch them: read only, for a limited time, for so many rows."""

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

SECONDS = 5.0
"""A query that takes longer fails."""
MAX_ROWS = 10_000
"""A query that gives more fails."""
MAX_BYTES = 50_000
"""Of one value or row that a query makes."""
SHOWN_ROWS, SHOWN_CHARACTERS = 3, 120
STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
QUOTED = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|\[[^\]]*\]""")
PARENTHESES = re.compile(r"\([^()]*\)")
ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)

Rows = list[tuple]


class QueryFailedError(Exception):
    """A query cannot be run to its end; the message says why in one line."""


def run_query(database: str | Path, query: str) -> Rows:
    """All rows of a query, read only and within the limits; raises `QueryFailedError`."""
    with _opened(database) as connection:
        began = time.monotonic()
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
        connection.set_progress_handler(lambda: time.monotonic() - began > SECONDS, STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
        try:
            with closing(connection.execute(query)) as cursor:
                if cursor.description is None:
                    raise QueryFailedError("this is no query")
                rows = cursor.fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            late = time.monotonic() - began > SECONDS
            raise QueryFailedError(f"it took longer than {SECONDS:g} s" if late else str(error)) from error
    if len(rows) > MAX_ROWS:
        raise QueryFailedError(f"it gives more than {MAX_ROWS} rows")
    return rows


def outcome(database: str | Path, query: str) -> tuple[Rows | None, str]:
    """All rows of a query, None if it fails; and in one line how many there are and the first, or why it failed."""
    try:
        rows = run_query(database, query)
    except QueryFailedError as error:
        return None, f"Error: {error}"[:SHOWN_CHARACTERS]
    first = "; ".join(", ".join(map(str, row)) for row in rows[:SHOWN_ROWS])
    return rows, " ".join(f"{len(rows)} rows: {first}".split())[:SHOWN_CHARACTERS]


def schema(database: str | Path) -> str:
    """A line per table, as ``book(id, title, author_id -> author.id)``."""
    with _opened(database) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
        return "\n".join(_table(connection, name) for (name,) in names if not name.startswith("sqlite_"))


def same_result(gold: str, expected: Rows, rows: Rows) -> bool:
    """Whether two results are equal: row by row where the gold query orders its rows, else in any order."""
    return expected == rows if orders_rows(gold) else Counter(expected) == Counter(rows)


def orders_rows(query: str) -> bool:
    """Whether a query orders its result, not just something within parentheses."""
    bare = QUOTED.sub("", query)
    while (outer := PARENTHESES.sub("", bare)) != bare:
        bare = outer
    return ORDERED.search(bare) is not None


@contextmanager
def _opened(database: str | Path) -> Iterator[sqlite3.Connection]:
    if not Path(database).is_file():
        raise FileNotFoundError(f"there is no database {database}")
    with closing(sqlite3.connect(f"{Path(database).resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode(errors="replace")  # Spider has text in other encodings
        yield connection


def _table(connection: sqlite3.Connection, table: str) -> str:
    keys = connection.execute('SELECT "from", "table", "to" FROM pragma_foreign_key_list(?)', (table,))
    points = {column: f" -> {_name(other)}" + (f".{_name(to)}" if to else "") for column, other, to in keys}
    columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return f"{_name(table)}({', '.join(_name(column) + points.get(column, '') for (column,) in columns)})"


def _name(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
