"""Commands that put work in or look at what came of it."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from bus import Bus
from bus.tasks import read_problems
from lightningbus.answers import Answer, show
from lightningbus.options import (
    BusOption,
    CsvOption,
    DatabaseOption,
    JsonOption,
    SqlOption,
    check_names,
    extra,
    finish,
    or_fail,
)
from lightningbus.places import bus_url
from lightningbus.roles import UserError, fail, on_stop_signals
from store.reports import REPORTS


def publish(
    tasks: Annotated[Path, typer.Argument(help='JSONL, one {"id": ..., "input": ...} per line')],
    samples: Annotated[int, typer.Option(min=1, help="rollouts per task: the group that is compared")] = 1,
    run: Annotated[str, typer.Option(help="run the results belong to")] = "run",
    agent: Annotated[str, typer.Option(help="agent name")] = "default",
    mode: Annotated[str, typer.Option(help="train or eval")] = "train",
    version: Annotated[int | None, typer.Option(help="answer every call from this weight version only")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="forced on every model call")] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="seconds a rollout may take")] = 60.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds to wait while the queue is full")] = 300.0,
    bus: BusOption = None,
) -> None:
    """Publish the tasks of a file; every line is checked before the first is sent."""
    from lightningbus.publishing import publish_all, samples_of

    if mode not in ("train", "eval"):
        fail(f"--mode: {mode!r} is neither train nor eval")
    problems = or_fail(read_problems, tasks)
    sampling = {} if temperature is None else {"temperature": temperature}
    fields: dict[str, Any] = {"run": run, "agent": agent, "mode": mode, "weight_version": version}
    made = samples_of(problems, samples, f"@{run}", **fields, sampling=sampling, deadline=deadline)
    check_names(run=run, agent=agent)

    async def send() -> int:
        from rich.progress import Progress

        from lightningbus.view import console

        async with Bus.connect(bus_url(bus), name="publish") as connected:
            with Progress(console=console(), transient=True) as progress:
                bar = progress.add_task("publishing", total=len(problems) * samples)
                return await publish_all(connected, made, timeout, lambda: progress.advance(bar))

    count = finish(send())
    print(f"{count} rollouts of {len(problems)} tasks published")


def query(
    statement: Annotated[str, typer.Argument(help="SQL; tables and views are listed in docs/store.md")],
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask ClickHouse: of a running store, or of the latest run's files."""
    show(_ask(sql, database, statement), as_json, as_csv)


def report(
    name: Annotated[str, typer.Argument(help="rewards, staleness or rollouts")],
    run: Annotated[str, typer.Option(help="one run only")] = "",
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The questions everybody asks: rewards by version, staleness by step, rollouts by outcome."""
    if name not in REPORTS:
        fail(f"there is no report {name!r}; there are: {', '.join(REPORTS)}")
    show(_ask(sql, database, REPORTS[name].sql, run=run), as_json, as_csv, REPORTS[name].title)


def status(
    bus: BusOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="keep showing until Ctrl-C")] = False,
) -> None:
    """Who is alive and what they do."""
    from rich.console import Console

    from lightningbus.view import View, alarms, console, members_table

    async def look() -> None:
        async with Bus.connect(bus_url(bus), name="status") as connected, connected.fleet("*") as fleet:
            if watch:
                stop = asyncio.Event()
                on_stop_signals(asyncio.get_running_loop(), stop)
                async with View(fleet, "lightningbus status", console()).showing() as view:
                    view.say("watching; Ctrl-C stops")
                    await stop.wait()
                return
            await asyncio.sleep(1.5)  # everybody says once a second what they do
            members = fleet.members()
            Console().print(members_table(members) if members else "nobody is alive on this bus")
            for alarm in alarms(members):
                Console(soft_wrap=True).print(f"ALARM  {alarm}", style="bold red", highlight=False)

    finish(look())


def _ask(sql: str | None, database: str, statement: str, **parameters: Any) -> Answer:
    with extra("store"):
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from lightningbus.sql import sql_client
        from store.client import StoreUnreachable

    async def ask() -> Answer:
        async with sql_client(sql, database) as client:
            try:
                result = await asyncio.to_thread(client.query, statement, parameters=parameters or None)
            except ClickHouseError as error:
                raise UserError(" ".join(str(error).split())[:500]) from error
            return list(result.column_names), [tuple(row) for row in result.result_rows]

    try:
        return finish(ask())
    except StoreUnreachable as error:
        fail(error)
