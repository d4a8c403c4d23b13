"""The ``lightningbus`` command. Each role imports its room when it is asked for, so a runner needs no heavy package."""

import asyncio
import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from bus import Bus, BusError
from bus.tasks import TaskFileError, read_problems
from lightningbus.places import bus_url
from lightningbus.roles import UserError, fail, on_stop_signals, run_role, set_up_logging

app = typer.Typer(
    help="Train any LLM agent by reinforcement learning, over an event bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

BusOption = Annotated[
    str | None, typer.Option("--bus", help="NATS URL [default: $LIGHTNINGBUS_BUS, else the run that is up here]")
]
SqlOption = Annotated[
    str | None, typer.Option("--sql", help="ClickHouse URL [default: $LIGHTNINGBUS_SQL, else the running store's]")
]
SettingsOption = Annotated[
    Path | None, typer.Option("--settings", help="YAML or JSON with any field of this role; options win over it")
]
DatabaseOption = Annotated[str, typer.Option(help="ClickHouse database")]


@app.callback()
def _main(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="more log lines")] = False) -> None:
    set_up_logging(verbose)


@app.command()
def bus(
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 4222,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    dir: Annotated[Path, typer.Option(help="where the streams are kept")] = Path("runs/bus"),
) -> None:
    """Run a nats-server with all streams made, until Ctrl-C."""
    from bus.embedded import nats_server

    async def serve() -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        async with nats_server(dir, host, port) as server:
            async with Bus.connect(server.url, name="provision") as connected:
                await connected.provision()
            print(f"bus: {server.url}", flush=True)
            assert server.process is not None
            ended = asyncio.ensure_future(server.process.wait())
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise UserError(f"nats-server ended with {ended.result()}: see {dir / 'nats.log'}")

    _run(serve())


@app.command()
def provision(bus: BusOption = None) -> None:
    """Make the streams and consumers on a NATS server of your own; safe to repeat."""

    async def make() -> None:
        async with Bus.connect(bus_url(bus), name="provision") as connected:
            await connected.provision()

    _run(make())


@app.command()
def store(
    bus: BusOption = None,
    url: Annotated[str | None, typer.Option(help="ClickHouse server [default: an embedded engine]")] = None,
    path: Annotated[Path | None, typer.Option(help="data of the embedded engine [default: runs/store]")] = None,
    http_port: Annotated[int | None, typer.Option(help="its HTTP port; 0 takes a free one [default: 8123]")] = None,
    settings: SettingsOption = None,
) -> None:
    """Write every event into ClickHouse, and answer SQL over ClickHouse's HTTP interface."""
    room = _room("store", "store")
    checked = _settings(room.settings.StoreSettings, settings, url=url, path=path, http_port=http_port)
    expected = (
        room.http.PortInUse, room.engine.EngineBusy, room.client.StoreUnreachable, room.migrations.MigrationError
    )  # fmt: skip
    run_role(bus_url(bus), "store", room.store.run, checked, *expected)


@app.command()
def inference(
    model_path: Annotated[Path | None, typer.Option(help="model directory: architecture and tokenizer")] = None,
    bus: BusOption = None,
    model: Annotated[str | None, typer.Option(help="name agents ask for [default: policy]")] = None,
    port: Annotated[int | None, typer.Option(help="port of the gateway [default: a free one]")] = None,
    host: Annotated[str | None, typer.Option(help="address of the gateway [default: 127.0.0.1]")] = None,
    settings: SettingsOption = None,
) -> None:
    """Run vLLM behind a gateway, and swap each new weight version in while requests are in flight."""
    room = _room("inference", "inference")
    given = {"model_path": model_path, "model": model, "port": port, "host": host}
    checked = _settings(room.settings.InferenceSettings, settings, **given)
    run_role(bus_url(bus), "inference", room.node.run, checked, room.engine.EngineFailed, room.node.PortInUse)


@app.command()
def learner(
    model_path: Annotated[Path | None, typer.Option(help="model directory to start from")] = None,
    tasks: Annotated[Path | None, typer.Option(help="JSONL of training tasks to dispatch")] = None,
    steps: Annotated[int | None, typer.Option(help="training steps [default: 100]")] = None,
    run: Annotated[str | None, typer.Option(help="name of the run [default: run]")] = None,
    bus: BusOption = None,
    checkpoints: Annotated[Path | None, typer.Option(help="where to keep them [default: runs/checkpoints]")] = None,
    settings: SettingsOption = None,
) -> None:
    """Train on finished rollouts with verl, and publish every step as a weight version."""
    room = _room("learner", "learner")
    given = {"model_path": model_path, "tasks": tasks, "steps": steps, "run": run, "checkpoints": checkpoints}
    checked = _settings(room.settings.LearnerSettings, settings, **given)
    expected = (room.publish.CannotLearn, room.checkpoint.CheckpointError, TaskFileError)
    run_role(bus_url(bus), "learner", room.learner.run, checked, *expected)


@app.command()
def runner(
    agent: Annotated[str | None, typer.Option(help="the agent as module:function, sync or async")] = None,
    python: Annotated[Path | None, typer.Option(help="interpreter it runs in [default: this one]")] = None,
    path: Annotated[Path | None, typer.Option(help="directory it runs in [default: here]")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-n", help="rollouts at once [default: 4]")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="any program instead of a Python agent, as one would type it")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="reward function as module:function(input, result)")] = None,
    name: Annotated[str | None, typer.Option(help="agent name whose tasks it takes [default: default]")] = None,
    bus: BusOption = None,
    settings: SettingsOption = None,
) -> None:
    """Take tasks from the bus, run the agent on each, and publish what happened."""
    import shlex

    from runners import host, runner
    from runners.settings import RunnerSettings

    words = shlex.split(command) if command is not None else None
    given = {"agent": agent, "python": python, "path": path, "concurrency": concurrency, "command": words}
    checked = _settings(RunnerSettings, settings, **given, reward=reward, name=name)
    run_role(bus_url(bus), "runner", runner.run, checked, host.CannotStart)


@app.command()
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
    problems = _or_fail(read_problems, tasks)
    sampling = {} if temperature is None else {"temperature": temperature}
    fields: dict[str, Any] = {"run": run, "agent": agent, "mode": mode, "weight_version": version}
    made = samples_of(problems, samples, f"@{run}", **fields, sampling=sampling, deadline=deadline)
    _check_names(run=run, agent=agent)

    async def send() -> int:
        from rich.progress import Progress

        from lightningbus.view import console

        async with Bus.connect(bus_url(bus), name="publish") as connected:
            with Progress(console=console(), transient=True) as progress:
                bar = progress.add_task("publishing", total=len(problems) * samples)
                return await publish_all(connected, made, timeout, lambda: progress.advance(bar))

    count = _run(send())
    print(f"{count} rollouts of {len(problems)} tasks published")


@app.command()
def query(
    statement: Annotated[str, typer.Argument(help="SQL; tables and views are listed in docs/store.md")],
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: Annotated[bool, typer.Option("--json", help="a list of objects")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="comma-separated, with a header")] = False,
) -> None:
    """Ask ClickHouse: of a running store, or of the latest run's files."""
    columns, rows = _ask(sql, database, statement)
    _show("", columns, rows, as_json, as_csv)


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="rewards, staleness or rollouts")],
    run: Annotated[str, typer.Option(help="one run only")] = "",
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: Annotated[bool, typer.Option("--json", help="a list of objects")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="comma-separated, with a header")] = False,
) -> None:
    """The questions everybody asks: rewards by version, staleness by step, rollouts by outcome."""
    reports = _room("store", "store").reports.REPORTS
    if name not in reports:
        fail(f"there is no report {name!r}; there are: {', '.join(reports)}")
    columns, rows = _ask(sql, database, reports[name].sql, run=run)
    _show(reports[name].title, columns, rows, as_json, as_csv)


@app.command()
def status(
    bus: BusOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="keep showing until Ctrl-C")] = False,
) -> None:
    """Who is alive and what they do."""
    from lightningbus.view import View, console, members_table

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
            from rich.console import Console

            members = fleet.members()
            Console().print(members_table(members) if members else "nobody is alive on this bus")

    _run(look())


@app.command()
def up(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file; see examples/calculator/run.yaml")],
) -> None:
    """Run all roles of a run file on this machine, under one supervisor, until Ctrl-C or the last step."""
    from lightningbus.settings import RunSettings, load
    from lightningbus.up import up as bring_up

    _run(bring_up(_or_fail(load, RunSettings, config)))


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 40,
    seed: Annotated[int, typer.Option(help="of the problems, the model and the order of tasks")] = 0,
    runs: Annotated[Path, typer.Option(help="where run directories are made")] = Path("runs"),
) -> None:
    """Train the calculator agent on the embedded defaults, and report how much better it got."""
    from lightningbus.demo import Job
    from lightningbus.demo import demo as play

    async def work() -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        playing = asyncio.ensure_future(play(Job(steps=steps, seed=seed), runs))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            raise UserError("stopped before the end")
        await playing

    _run(work())


def _settings(kind: type[BaseModel], file: Path | None, /, **given: Any) -> Any:
    from lightningbus.settings import checked, fields_of

    fields = _or_fail(fields_of, file) if file is not None else {}
    fields |= {name: value for name, value in given.items() if value is not None}
    return _or_fail(checked, kind, fields, str(file) if file is not None else "settings")


def _room(name: str, extra: str) -> Any:
    """A room with all its modules; the sentence to say where its packages are not installed."""
    import importlib

    parts = {
        "store": ("settings", "store", "http", "engine", "client", "migrations", "reports"),
        "inference": ("settings", "node", "engine"),
        "learner": ("settings", "learner", "publish", "checkpoint"),
    }[name]
    try:
        for part in parts:
            importlib.import_module(f"{name}.{part}")
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'lightningbus[{extra}]'")
    return importlib.import_module(name)


def _ask(sql: str | None, database: str, statement: str, **parameters: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    room = _room("store", "store")
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from lightningbus.sql import sql_client

    async def ask() -> tuple[list[str], list[tuple[Any, ...]]]:
        async with sql_client(sql, database) as client:
            try:
                answer: tuple[list[str], list[tuple[Any, ...]]] = await asyncio.to_thread(
                    room.reports.ask, client, statement, **parameters
                )
            except ClickHouseError as error:
                raise UserError(" ".join(str(error).split())[:500]) from error
            return answer

    try:
        return _run(ask())
    except room.client.StoreUnreachable as error:
        fail(error)


def _show(title: str, columns: list[str], rows: list[tuple[Any, ...]], as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], default=str, ensure_ascii=False))
        return
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows(rows)
        return
    from rich.console import Console
    from rich.table import Table

    wide = None if sys.stdout.isatty() else 400  # a pipe has no width to fit into
    table = Table(*columns, title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console(width=wide).print(table if columns else "done")


def _check_names(**names: str) -> None:
    import re

    for name, value in names.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
            fail(f"--{name}: {value!r} is not a name: letters, digits, _ and -, at most 64")


def _or_fail(work: Any, *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except (UserError, TaskFileError) as error:
        fail(error)


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except (BusError, UserError, TaskFileError) as error:
        fail(error)


def main() -> None:
    """Entry point."""
    app()
