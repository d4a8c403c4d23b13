"""Edits by which a copy of the tree runs on chdb-core-lite: ``python -m deploy.airgapped.store_edits ROOT``.

The lite engine is a fifth of the size. It lacks bitShiftLeft, formatQuerySingleLine, groupArraySorted and
kolmogorovSmirnovTest. One column is computed in another way, reports that cannot be created are left out, and the guard
of read-only queries sees a statement as it is. So only a copy on a machine for measurements is edited.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

EDITS: Mapping[str, Sequence[tuple[str, str]]] = {
    "store/clickhouse/migrations/0001_tables.sql": [
        (
            "bitShiftLeft(toUInt64(3 - toInt8(resolution)), 62)",
            "toUInt64(3 - toInt8(resolution)) * 4611686018427387904",
        )
    ],
    "store/embedded/engine.py": [
        (
            "SELECT formatQuerySingleLine({quote_text(_decode_sql(sql))})",
            "SELECT {quote_text(' '.join(_decode_sql(sql).split()))}",
        )
    ],
    "store/clickhouse/migrations/__init__.py": [
        (
            "        client.command(render_sql(report.view, database, cluster))\n",
            "        try:\n"
            "            client.command(render_sql(report.view, database, cluster))\n"
            "        except Exception as error:\n"
            '            print(f"left out: {str(error)[-200:]}")\n',
        )
    ],
}
"""Path of a file -> each text in it, and what replaces it."""


class EditError(Exception):
    """A file is not as an edit expects it; the text is a sentence that says what to do."""


def edit(name: str, text: str) -> str:
    """Return the edited text of a file, once or again; raises `EditError`. Pure."""
    for old, new in EDITS[name]:
        if new in text:
            continue
        if text.count(old) != 1:
            raise EditError(f"{name} has {old.strip()!r} {text.count(old)} times, not once: change its row of EDITS")
        text = text.replace(old, new)
    return text


def edit_tree(root: Path) -> None:
    """Edit the files below a root, all or none; raises `EditError`."""
    edited = {root / name: edit(name, (root / name).read_text()) for name in EDITS}
    for path, text in edited.items():
        path.write_text(text)


def main() -> None:
    """Edit a copy of the tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="root of a copy of the repository; never of your own checkout")
    try:
        edit_tree(parser.parse_args().root)
    except EditError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
