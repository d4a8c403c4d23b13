"""Prints rows on standard output: a table for people, or JSON or CSV for programs."""

import csv
import sys
from typing import Any

from lightningbus.common.printable import printable_json, to_printable
from lightningbus.store.reports import ResultTable


def run_query(client: Any, statement: str, **parameters: Any) -> ResultTable:
    """Run a statement; return its column names and its rows."""
    from lightningbus.store.clickhouse.client import query_table

    return query_table(client, statement, parameters)


def print_result(
    answer: ResultTable, as_json: bool = False, as_csv: bool = False, title: str = "", none: str = "done"
) -> None:
    """Print rows; ``none`` is the text to print if there are no columns or no rows."""
    columns, rows = answer
    if as_json:
        print(printable_json([dict(zip(columns, row, strict=True)) for row in rows]))
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([to_printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        return
    from lightningbus.run.display.terminal import output, render_table

    output().print(render_table(columns, rows, title) if columns else none)
