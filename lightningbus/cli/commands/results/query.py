"""``lightningbus query``: run SQL on the store."""

from typing import Annotated

import typer

from lightningbus.cli.options import (
    CsvOption,
    DatabaseOption,
    JsonOption,
    SqlOption,
    with_sql_client,
)
from lightningbus.cli.output import print_result, run_query


def query(
    statement: Annotated[str, typer.Argument(help="SQL statement; docs/store.md lists tables and views")],
    run: Annotated[str, typer.Option(help="run whose store to query, by name or directory [default: the latest]")] = "",
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Run SQL on a running store, or on the files of a run."""
    columns, rows = with_sql_client(sql, database, lambda client: run_query(client, statement), run)
    print_result((columns if rows or as_json or as_csv else [], rows), as_json, as_csv, none="0 rows")
