"""Commands that start something: each role by itself, all of a run file, or the demo."""

import asyncio
import importlib
import os
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from bus import Bus
from bus.tasks import TaskFileError
from lightningbus.options import (
    BusOption,
    DatabaseOption,
    HealthOption,
    SettingsOption,
    check_names,
    extra,
    finish,
    or_fail,
    settings_of,
    with_key,
)
from lightningbus.places import access_directory, access_of, connected, place
from lightningbus.roles import UserError, fail, on_stop_signals, run_role

bus_app = typer.Typer(rich_markup_mode=None)
store_app = typer.Typer(rich_markup_mode=None)
READER_VARIABLE, WRITER_VARIABLE = "LIGHTNINGBUS_READER_PASSWORD", "LIGHTNINGBUS_WRITER_PASSWORD"


@bus_app.callback(invoke_without_command=True)
def bus(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 4222,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    dir: Annotated[Path, typer.Option(help="where the streams are kept")] = Path("runs/bus"),
    sync: Annotated[
        str, typer.Option(help="how long a write may wait for the disk; always: survives a power loss")
    ] = "2m",
    open: Annotated[bool, typer.Option("--open", help="let in whoever reaches it, beyond loopback too")] = False,
) -> None:
    """Run a nats-server with all streams made, until Ctrl-C; one that dies is started again."""
    from bus.cancelling import cancel
    from bus.embedded import nats_server

    if context.invoked_subcommand is not None:
        return
    users = access_directory()

    async def serve() -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        async with nats_server(dir, host, port, sync, users, open) as server:
            async with Bus.connect(server.url, name="provision", access=access_of("admin")) as own:
                await own.provision()
            print(f"bus: {server.url}", flush=True)
            alive = asyncio.ensure_future(server.keep_alive())
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({alive, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if alive.done():
                alive.result()
            await cancel(alive)

    finish(serve())


@bus_app.command()
def users(
    out: Annotated[Path, typer.Option(help="directory for what is made; keep it to yourself")],
    tls: Annotated[
        bool, typer.Option("--tls", help="certificates too: the bus speaks TLS, to clients with one")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address the server is reached under, for its certificate; repeat it"),
    ] = None,
    site: Annotated[bool, typer.Option("--site", help="for the server of a far site, a leaf of a cluster")] = False,
) -> None:
    """Make a user of the bus for each role, with no more rights than it needs, and the server's configuration."""
    with extra("bus"):
        from bus.users import make_users

    def make() -> None:
        for line in make_users(out, tls, host or (), site):
            print(line)

    or_fail(make)
    print(
        "next, a server that knows them:\n"
        f"  lightningbus --access {out} bus{' --host ADDRESS' if tls else ''}"
        f"        # or `include` {out}/users.conf in your own\n"
        "and each role with its own directory, which is all that has to go to its machine:\n"
        f"  lightningbus --access {out}/runner runner --bus nats://ADDRESS:4222 ..."
    )


def provision(
    bus: BusOption = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="servers that hold each stream [default: as it is, else 1]"),
    ] = None,
) -> None:
    """Make the streams and consumers on a NATS server or cluster of your own; safe to repeat."""

    async def make() -> None:
        async with connected(bus, "provision", "admin") as at:
            await at.provision(replicas)

    finish(make())


@store_app.callback(invoke_without_command=True)
def store(
    context: typer.Context,
    bus: BusOption = None,
    url: Annotated[str | None, typer.Option(help="ClickHouse server [default: an embedded engine]")] = None,
    path: Annotated[Path | None, typer.Option(help="data of the embedded engine [default: runs/store]")] = None,
    http_port: Annotated[int | None, typer.Option(help="its HTTP port; 0 takes a free one [default: 8123]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Write every event into ClickHouse, and answer SQL over ClickHouse's HTTP interface."""
    if context.invoked_subcommand is not None:
        return
    with extra("store"):
        from store import client, engine, http, migrations
        from store import store as room
        from store.settings import StoreSettings

    checked = settings_of(StoreSettings, settings, url=url, path=path, http_port=http_port, health=health)
    expected = (http.PortInUse, engine.EngineBusy, client.StoreUnreachable, migrations.MigrationError)
    run_role(or_fail(place, bus, "store"), "store", room.run, checked, *expected)


@store_app.command("users")
def sql_users(
    sql: Annotated[
        str | None, typer.Option("--sql", help="make them there, as a user who may [default: print the statements]")
    ] = None,
    database: DatabaseOption = "lightningbus",
    cluster: Annotated[str | None, typer.Option(help="on all servers of a cluster")] = None,
) -> None:
    """Make users of a ClickHouse server: one who reads within limits, one who writes.

    Their passwords are in $LIGHTNINGBUS_READER_PASSWORD and $LIGHTNINGBUS_WRITER_PASSWORD; without one, no such user.
    """
    with extra("store"):
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from store import users
        from store.client import StoreUnreachable, connect
        from store.limits import sentence

    check_names(database=database, **({"cluster": cluster} if cluster else {}))
    reader, writer = (os.environ.get(name, "") for name in (READER_VARIABLE, WRITER_VARIABLE))
    made = users.statements(database, cluster, reader=reader, writer=writer)
    if not made:
        fail(f"put a password into ${READER_VARIABLE} or ${WRITER_VARIABLE}, or into both: no user is made without one")
    if sql is None:
        print(";\n".join(made) + ";")
        return
    try:
        client = connect(sql, None)
        for statement in made:
            client.command(statement)
    except StoreUnreachable as error:
        fail(error)
    except ClickHouseError as error:
        fail(sentence(error))
    print(f"made: {', '.join(name for name, given in ((users.READER, reader), (users.WRITER, writer)) if given)}")


def inference(
    model_path: Annotated[Path | None, typer.Option(help="model directory: architecture and tokenizer")] = None,
    bus: BusOption = None,
    model: Annotated[str | None, typer.Option(help="name agents ask for [default: policy]")] = None,
    port: Annotated[int | None, typer.Option(help="port of the gateway [default: a free one]")] = None,
    host: Annotated[str | None, typer.Option(help="address of the gateway [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(help="URL runners reach it at [default: http://host:port]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run vLLM behind a gateway, and swap each new weight version in while requests are in flight."""
    with extra("inference"):
        from inference import engine, node
        from inference.settings import InferenceSettings

    given = {"model_path": model_path, "model": model, "port": port, "host": host, "advertise": advertise}
    checked = settings_of(InferenceSettings, settings, **given, health=health)
    at = or_fail(place, bus, "node")
    run_role(at, "inference", node.run, with_key(checked, at), engine.EngineFailed, node.PortInUse)


def learner(
    model_path: Annotated[Path | None, typer.Option(help="model directory to start from")] = None,
    tasks: Annotated[Path | None, typer.Option(help="JSONL of training tasks to dispatch")] = None,
    steps: Annotated[int | None, typer.Option(help="training steps [default: 100]")] = None,
    run: Annotated[str | None, typer.Option(help="name of the run [default: run]")] = None,
    bus: BusOption = None,
    checkpoints: Annotated[Path | None, typer.Option(help="where to keep them [default: runs/checkpoints]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Train on finished rollouts with verl, and publish every step as a weight version.

    Over several GPUs or processes: torchrun --nproc-per-node 2 -m lightningbus learner ...
    """
    with extra("learner"):
        from learner import checkpoint, publish, ranks
        from learner import learner as room
        from learner.settings import LearnerSettings

    given = {"model_path": model_path, "tasks": tasks, "steps": steps, "run": run, "checkpoints": checkpoints}
    checked = settings_of(LearnerSettings, settings, **given, health=health)
    if ranks.is_follower():
        room.follow(checked)
        return
    expected = (publish.CannotLearn, checkpoint.CheckpointError, TaskFileError)
    run_role(or_fail(place, bus, "learner"), "learner", room.run, checked, *expected)


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
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Take tasks from the bus, run the agent on each, and publish what happened."""
    from bus.children import Guard
    from runners import runner as room
    from runners.place import CannotStart
    from runners.settings import RunnerSettings

    words = shlex.split(command) if command is not None else None
    given = {"agent": agent, "python": python, "path": path, "concurrency": concurrency, "command": words}
    checked = settings_of(RunnerSettings, settings, **given, reward=reward, name=name, health=health)
    at = or_fail(place, bus, "runner")
    Guard.stand()
    run_role(at, "runner", room.run, with_key(checked, at), CannotStart)


def up(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file; see examples/calculator/run.yaml")],
) -> None:
    """Run all roles of a run file on this machine, under one supervisor, until Ctrl-C or the last step."""
    from lightningbus.settings import RunSettings, load
    from lightningbus.up import up as bring_up

    finish(bring_up(or_fail(load, RunSettings, config)))


def train(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file with a learner and held-out tasks")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="load and check everything but the weights")] = False,
) -> None:
    """Run a training job to its end: held-out reward before, training, held-out reward after, figures and a picture."""
    with extra("demo"):
        importlib.import_module("matplotlib")  # the picture comes last, and is not to be what fails
    from lightningbus import checking, training
    from lightningbus.settings import RunSettings, load

    settings = or_fail(load, RunSettings, config)
    job = or_fail(checking.job, settings, str(config))

    def look() -> None:
        for found in checking.looked_at(settings, job):
            print(found)

    if dry_run:
        or_fail(look)
        return
    finish(_to_its_end(training.run(settings, job)))


def demo(
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 36,
    seed: Annotated[int, typer.Option(help="of the problems, the model and the order of tasks")] = 0,
    runs: Annotated[Path, typer.Option(help="where run directories are made")] = Path("runs"),
) -> None:
    """Train the calculator agent on the embedded defaults, and report how much better it got."""
    from lightningbus.demo import Job
    from lightningbus.demo import demo as play

    finish(_to_its_end(play(Job(steps=steps, seed=seed), runs)))


async def _to_its_end(job: Coroutine[Any, Any, object]) -> None:
    """Raises `UserError` when a signal stops it."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    working, stopping = asyncio.ensure_future(job), asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise UserError("stopped before the end")
    await working
