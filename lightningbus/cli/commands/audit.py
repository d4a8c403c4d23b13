"""``lightningbus audit``: what the auditor found."""

from typing import Annotated, Any

import typer

from lightningbus.cli.options import CsvOption, DatabaseOption, JsonOption, SqlOption, require_extra, with_sql_client
from lightningbus.cli.output import print_result, run_query
from store.reports import ResultTable


def audit(
    run: Annotated[str, typer.Option(help="one run only")] = "",
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """By engine and version: tokens recomputed, tokens that differ, verdicts, and what is quarantined."""
    with require_extra("store"):
        from store.reports import REPORTS
    definition = REPORTS["audit"]

    def answer(client: Any) -> ResultTable:
        return run_query(client, definition.query(database), **definition.values({}, run, None))

    print_result(with_sql_client(sql, database, answer), as_json, as_csv, definition.title, none="nothing audited yet")
