"""Rows as an answer on standard output: a table to read, or JSON or CSV to go on with."""

import csv
import json
import sys
from datetime import datetime
from typing import Any

Answer = tuple[list[str], list[tuple[Any, ...]]]
"""Column names and rows."""


def answer_of(client: Any, statement: str, **parameters: Any) -> Answer:
    """What ClickHouse answers."""
    result = client.query(statement, parameters=parameters or None)
    return list(result.column_names), [tuple(row) for row in result.result_rows]


def show(answer: Answer, as_json: bool = False, as_csv: bool = False, title: str = "", none: str = "done") -> None:
    """Print an answer; ``none`` is said instead of a table without columns or rows."""
    columns, rows = answer
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], default=str, ensure_ascii=False))
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        return
    from rich.console import Console
    from rich.table import Table

    wide = None if sys.stdout.isatty() else 400  # a pipe has no width to fit into
    table = Table(*columns, title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console(width=wide).print(table if columns else none)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else str(value)
