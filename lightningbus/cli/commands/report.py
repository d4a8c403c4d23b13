"""``lightningbus report``, ``transcript`` and ``tail``: questions answered, a rollout to read, rollouts as they end."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from lightningbus.cli.options import (
    BusOption,
    CsvOption,
    DatabaseOption,
    JsonOption,
    SqlOption,
    extra,
    finish,
    or_fail,
    with_sql,
)
from lightningbus.cli.output import answer_of, show
from lightningbus.run.role_process import UserError, fail
from store.reports import ResultTable

NEXT = """
SELECT min(created_at) FROM weight_versions
WHERE {run_id:String} IN ('', run_id) AND version = {version:UInt32} HAVING count() > 0
"""


def report(
    name: Annotated[str | None, typer.Argument(help="which; without one, what there is", show_default=False)] = None,
    run: Annotated[str, typer.Option(help="one run only")] = "",
    as_of: Annotated[
        str | None,
        typer.Option(help="as it was at a time (2026-11-21T10:00, UTC) or while a weight version was newest"),
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option("--with", help="NAME=VALUE of a report's own parameter, may be repeated")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw it into this PNG")] = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The questions everybody asks, each also a view of SQL."""
    with extra("store"):
        from store.reports import REPORTS
    if name is None:
        rows: list[tuple[Any, ...]] = [
            (one.name, one.title, " ".join(_told(one.parameters))) for one in REPORTS.values()
        ]
        show((["report", "what it says", "parameters"], rows), as_json, as_csv)
        return
    if name not in REPORTS:
        fail(f"there is no report {name!r}; there are: {', '.join(REPORTS)}")
    asked = REPORTS[name]
    if plot is not None and asked.plot is None:
        fail(f"report {name} has no picture; with one are: {', '.join(o.name for o in REPORTS.values() if o.plot)}")
    own = dict(_pair(text) for text in given or ())

    def answer(client: Any) -> ResultTable:
        until = _moment(client, as_of, run) if as_of is not None else None
        try:
            values = asked.values(own, run, until)
        except ValueError as error:
            raise UserError(str(error)) from error
        return answer_of(client, asked.query(database), **values)

    found = with_sql(sql, database, answer)
    if plot is not None and asked.plot is not None:
        with extra("demo"):
            from lightningbus.run.plot import plot_report
        or_fail(plot_report, plot, asked.title, asked.plot, found)
        print(plot)
        return
    show(found, as_json, as_csv, asked.title, none="nothing yet")


def transcript(
    rollout: Annotated[str, typer.Argument(help="id of the rollout")],
    run: Annotated[str, typer.Option(help="run it belongs to; default: the newest that has it")] = "",
    color: Annotated[str, typer.Option(help="what the colour of a token shows: advantage, staleness or none")] = "none",
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
) -> None:
    """One rollout as it went: what was asked and answered, call by call, tools and reward; each token's version."""
    with extra("store"):
        from lightningbus.analysis.transcript import Transcript
    if color not in ("none", "advantage", "staleness"):
        fail(f"--color: {color!r} is none of advantage, staleness and none")
    found = with_sql(sql, database, lambda client: Transcript.of(client, rollout, run))
    found.show_json() if as_json else found.show(color)


def tail(
    run: Annotated[str, typer.Option(help="one run only")] = "",
    outcome: Annotated[str, typer.Option(help="one outcome only, e.g. agent_error")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object per line")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="stop after so many")] = None,
    bus: BusOption = None,
) -> None:
    """Attempts as they end, a line each, until Ctrl-C."""
    from lightningbus.analysis.tail import follow

    finish(follow(bus, run, outcome, as_json, count))


def _told(parameters: Any) -> list[str]:
    return [one.name if one.default is None else f"{one.name}={one.default}" for one in parameters]


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        fail(f"--with: {text!r} is not NAME=VALUE")
    return name, value


def _moment(client: Any, text: str, run: str) -> datetime | None:
    """The end of a version's time, or a time; None: it is not over."""
    if text.isdecimal():
        found = client.query(NEXT, parameters={"run_id": run, "version": int(text) + 1}).result_rows
        return found[0][0] if found else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"--as-of: {text!r} is neither a weight version nor a time such as 2026-11-21T10:00") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment
