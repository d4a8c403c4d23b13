"""``lightningbus report``: show reports as tables or pictures."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lightningbus.cli.options import (
    CsvOption,
    DatabaseOption,
    JsonOption,
    RunOption,
    SqlOption,
    exit_on_user_error,
    require_extra,
    with_sql_client,
)
from lightningbus.cli.output import print_result, run_query
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.reports import Report, ResultTable
from lightningbus.store.reports.compared_runs import COMPARISONS, SIDES, Side

if TYPE_CHECKING:
    from lightningbus.run.run_data.comparison import ComparedRun

MAX_ROWS = 1000
NEXT = """
SELECT min(created_at) FROM weight_versions
WHERE ({run_id:String} = '' OR run_id = {run_id:String})
    AND {model:String} IN ('', model) AND version = {version:UInt32}
HAVING count() > 0
"""
MODELS = "SELECT DISTINCT model FROM weight_versions WHERE run_id = {run_id:String} ORDER BY model"


def report(
    name: Annotated[
        str | None, typer.Argument(help="name of the report [default: list all reports]", show_default=False)
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUES]...",
            help="values of the report's only parameter or of those without a default: `report compare first second`",
            show_default=False,
        ),
    ] = None,
    run: RunOption = "",
    model: Annotated[str, typer.Option(help="show only this model; also the model of a version in --as-of")] = "",
    as_of: Annotated[
        str | None,
        typer.Option(
            help="show the report as of a time (2026-11-21T10:00, UTC) or while a weight version was the newest"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="most rows to show; 0: all")] = MAX_ROWS,
    parameters: Annotated[
        list[str] | None, typer.Option("--param", help="NAME=VALUE for a parameter of the report; repeatable")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the report into this PNG file")] = None,
    html: Annotated[
        Path | None, typer.Option(help="write all reports of --run (default: the latest) into this HTML file")
    ] = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Answer the usual questions about a run. Each but compare and compare_tasks is also an SQL view."""
    with require_extra("store"):
        from lightningbus.run.run_data.comparison import load_side
        from lightningbus.run.run_data.run_names import check_model, find_stored_run
        from lightningbus.store.reports import REPORTS
        from lightningbus.store.reports.interval import add_intervals
    if html is not None:
        _write_html(html, name, run, sql, database)
        return
    if name is None and run:
        exit_with("--run goes with the name of a report, or with --html")
    if name is None:
        rows: list[tuple[Any, ...]] = [
            (entry.name, entry.title, " ".join(_format_parameters(entry.parameters))) for entry in REPORTS.values()
        ]
        print_result((["report", "what it says", "parameters"], rows), as_json, as_csv)
        return
    if name not in REPORTS:
        near = get_close_matches(name, REPORTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(REPORTS)}"
        exit_with(f"there is no report {name!r}; {hint}")
    definition = REPORTS[name]
    if plot is not None and definition.plot is None:
        exit_with(
            f"report {name} has no picture; with one are: {', '.join(o.name for o in REPORTS.values() if o.plot)}"
        )
    is_whole = not limit or plot is not None or name in COMPARISONS
    most = 0 if is_whole else limit + 1  # one more tells whether there are more
    arguments = exit_on_user_error(_parse_arguments, definition, values or (), parameters or ())
    if model and any(parameter.name == "model" for parameter in definition.parameters):
        arguments["model"] = model
    elif model and not definition.is_by_model and not (as_of or "").isdecimal():
        exit_with(f"report {name} is not by model: leave --model out")
    of_model = bool(model) and definition.is_by_model

    def load(client: Any, report: Report, values: Mapping[str, str], run_id: str) -> ResultTable:
        if model:
            check_model(client, run_id, model)
        until = _moment(client, as_of, run_id, model) if as_of is not None else None
        bound = report.values(values, run_id) | ({"model": model} if of_model else {})
        return add_intervals(run_query(client, report.query(database, most, of_model, until), **bound))

    def ask(client: Any) -> ResultTable:
        return load(client, definition, arguments, find_stored_run(client, run))

    def ask_side(side: Side) -> "ComparedRun":
        def answer(client: Any) -> "ComparedRun":
            return load_side(client, arguments, side, partial(load, client))

        return with_sql_client(sql, database, answer, arguments[side])

    if name in COMPARISONS:
        result = exit_on_user_error(_compare, name, ask_side, arguments, run)
    else:
        result = with_sql_client(sql, database, ask, run)
    if plot is not None and definition.plot is not None:
        with require_extra("demo"):
            from lightningbus.run.results.plot import plot_report
        exit_on_user_error(plot_report, plot, definition.title, definition.plot, result)
        print(plot)
        return
    columns, all_rows = result
    first_rows = all_rows[:limit] if limit else all_rows
    print_result((columns, first_rows), as_json, as_csv, definition.title, none="nothing yet")
    if len(first_rows) < len(all_rows):
        narrower = "".join(f", --param {entry.name}=... fewer" for entry in definition.parameters)
        print(f"these are the first {limit} rows: --limit 0 shows all{narrower}", file=sys.stderr)


def _compare(report: str, ask: "Callable[[Side], ComparedRun]", arguments: Mapping[str, str], run: str) -> ResultTable:
    """Ask each of two runs in its own store, and join the answers; raises `UserError` where one has no rollouts."""
    from lightningbus.run.run_data.comparison import join_runs

    names = [arguments[side] for side in SIDES]
    if run and run not in names:
        raise UserError(f"--run: report {report} is about {' and '.join(names)}: leave --run out")
    a, b = map(ask, SIDES)
    compared, notes = join_runs(report, a, b, arguments)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    return compared


def _write_html(path: Path, name: str | None, run: str, sql: str | None, database: str) -> None:
    if name is not None:
        exit_with("--html writes all reports into one file: leave the report's name out")
    latest = None if run else RunDirectory.latest()
    if not run and latest is None:
        exit_with("there is no run here: say which with --run")
    with require_extra("demo"):
        from lightningbus.run.results.html_report import write_report
        from lightningbus.run.run_data.run_names import find_stored_run
    which = run if latest is None else str(latest.path)

    def write(client: Any) -> None:
        write_report(path, client, database, find_stored_run(client, which))

    with_sql_client(sql, database, write, which)
    print(path)


def _format_parameters(parameters: Any) -> list[str]:
    return [
        parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}"
        for parameter in parameters
    ]


def _parse_arguments(report: Report, values: Sequence[str], pairs: Sequence[str]) -> dict[str, str]:
    """Return the arguments of a report by name; raises `UserError` for a missing, unknown, wrong or surplus one."""
    has_one = len(report.parameters) == 1
    positional = [parameter.name for parameter in (report.parameters if has_one else report.required)]
    if len(values) > len(positional):
        wanted = (
            f"only {' and '.join(positional)} without --param" if positional else "its parameters by --param NAME=VALUE"
        )
        raise UserError(f"report {report.name} takes {wanted}, not {values[len(positional)]!r}")
    arguments = dict(zip(positional, values, strict=False))
    for text in pairs:
        name, mark, value = text.partition("=")
        if not mark:
            raise UserError(f"--param: {text!r} is not NAME=VALUE")
        arguments[name] = value
    try:
        report.values(arguments, "")
    except ValueError as error:
        raise UserError(str(error)) from error
    return arguments


def _moment(client: Any, text: str, run: str, model: str) -> datetime | None:
    """Parse ``--as-of``: return a time, or the time that a weight version was replaced; None: it is the newest.

    Raises `UserError` for any other text, or where a version needs a model's name beside it.
    """
    if text.isdecimal():
        models = [name for (name,) in client.query(MODELS, parameters={"run_id": run}).result_rows]
        if not model and len(models) > 1:
            raise UserError(f"--as-of: run {run!r} has versions of {', '.join(models)}: say of which by --model")
        rows = client.query(NEXT, parameters={"run_id": run, "model": model, "version": int(text) + 1}).result_rows
        return rows[0][0] if rows else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--as-of: {text!r} is neither a weight version nor a time such as 2026-11-21T10:00") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment
