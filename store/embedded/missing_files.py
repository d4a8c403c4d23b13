"""Files that a directory of the embedded engine lacks, before the engine makes them anew and empty."""

import re
from collections.abc import Iterator
from pathlib import Path

TABLE = re.compile(r"ATTACH TABLE \S+ UUID '([0-9a-f-]{36})'.*?^ENGINE = \w*MergeTree\b", re.DOTALL | re.MULTILINE)
"""The definition of a table that has files of its own."""


def find_replaced_links(path: Path) -> list[Path]:
    """List the databases that are directories in place of links, as `scp -r` copies them, unreadable to ClickHouse."""
    return [each for each in (path / "metadata").glob("*/") if not each.is_symlink() and _is_atomic(each)]


def find_missing_tables(path: Path) -> list[str]:
    """List the tables whose directory is gone: ClickHouse would make an empty one, and find no rows."""
    return sorted(name for name, directory in _table_directories(path) if not directory.is_dir())


def _is_atomic(database: Path) -> bool:
    description = database.with_name(f"{database.name}.sql")
    return description.is_file() and "Atomic" in description.read_text(errors="replace")


def _table_directories(path: Path) -> Iterator[tuple[str, Path]]:
    for definition in (path / "metadata").glob("*/*.sql"):
        if match := TABLE.match(definition.read_text(errors="replace")):
            yield definition.stem, path / "store" / match[1][:3] / match[1]
