"""Rows as an answer on standard output: a table to read, or JSON or CSV to go on with."""

import csv
import sys
from typing import Any

from lightningbus.common.printable import printable_json, to_printable
from lightningbus.store.reports import ResultTable


def run_query(client: Any, statement: str, **parameters: Any) -> ResultTable:
    """What ClickHouse answers."""
    result = client.query(statement, parameters=parameters or None)
    return list(result.column_names), [tuple(row) for row in result.result_rows]


def print_result(
    answer: ResultTable, as_json: bool = False, as_csv: bool = False, title: str = "", none: str = "done"
) -> None:
    """Print an answer; ``none`` is said instead of a table without columns or rows."""
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
