"""Commands for what the roles stand on: the bus and its users, the store and ClickHouse's."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from bus.client import Bus
from bus.stream_sizes import StreamSizes
from bus.streams import ACK_WAIT_SECONDS, runner_consumers
from common.listeners import AddressInUseError
from lightningbus.cli.options import (
    BusOption,
    DatabaseOption,
    HealthOption,
    SettingsOption,
    check_names,
    extra,
    finish,
    or_fail,
    settings_of,
)
from lightningbus.run.discovery import access_directory, access_of, connected, place
from lightningbus.run.role_process import fail, on_stop_signals, run_role
from lightningbus.run.settings import checked

DEFAULT_AGENT = "default"
OPEN = "bus: it has no users: whoever reaches it may do anything (--access asks who it is)"
bus_app = typer.Typer(rich_markup_mode=None)
store_app = typer.Typer(rich_markup_mode=None)
READER_VARIABLE, WRITER_VARIABLE = "LIGHTNINGBUS_READER_PASSWORD", "LIGHTNINGBUS_WRITER_PASSWORD"
URL_VARIABLE, ADMIN_VARIABLE = "LIGHTNINGBUS_STORE_URL", "LIGHTNINGBUS_ADMIN_SQL"
"""Addresses with a password in them, which everybody on a machine sees in the arguments of a process."""

SizeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        help="how much a stream holds, as train_rollouts_mib=8192: tasks_mib, train_rollouts_mib, eval_rollouts_mib, "
        "events_mib, max_ack_pending; repeat it [default: as it is, else as shipped]",
    ),
]


def sizes_of(options: list[str] | None) -> StreamSizes:
    """What ``--size`` says; ends the process with a sentence where it says nothing that is known."""
    fields = dict(option.partition("=")[::2] for option in options or ())
    return or_fail(checked, StreamSizes, fields, "--size")


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
    size: SizeOption = None,
) -> None:
    """Run a nats-server with all streams made, until Ctrl-C; one that dies is started again."""
    from bus.embedded.nats_server import nats_server
    from common.aio import first_completed

    if context.invoked_subcommand is not None:
        return
    users, sizes = access_directory(), sizes_of(size)

    async def serve() -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        async with (
            nats_server(dir, host, port, sync, users, open, sizes.more_mib) as server,
            Bus.connect(server.url, name="provision", access=access_of("admin")) as own,
        ):
            more = runner_consumers(DEFAULT_AGENT) if users is not None else ()
            await own.provision(sizes=sizes, more=more)
            print(f"bus: {server.url}", flush=True)
            if users is None:
                print(OPEN, file=sys.stderr)
            await first_completed(server.supervise(), own.keep_provisioned(sizes, more), stop.wait())

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
    signing: Annotated[
        Path | None,
        typer.Option(help="a role's folder of the cluster, by whose signing keys a site goes: `node`, or `client`"),
    ] = None,
) -> None:
    """Make a user of the bus for each role, with no more rights than it needs, and the server's configuration."""
    with extra("bus"):
        from bus.security.users import create_users

    def make() -> None:
        for line in create_users(out, tls, host or (), site, signing):
            print(line)

    or_fail(make)
    if site:
        print(
            "next, on the host of the site's server, with `leaf-runner` and `leaf-inference` of the cluster:\n"
            f"  SERVER_NAME=site1 nats-server -c leaf.conf    # deploy/hosts/leaf.conf, with {out} for `site` in it\n"
            "and each of the site's roles with its own directory:\n"
            f"  lightningbus --access {out}/runner runner --bus nats://ADDRESS:4222 ..."
        )
        return
    print(
        "next, a server that knows them:\n"
        f"  lightningbus --access {out} bus{' --host ADDRESS' if tls else ''}"
        f"        # or `include` {out}/users.conf in your own\n"
        "and each role with its own directory, which is all that has to go to its machine:\n"
        f"  lightningbus --access {out}/runner runner --bus nats://ADDRESS:4222 ..."
    )


@bus_app.command()
def rotate(
    out: Annotated[Path, typer.Option(help="what `bus users` made")],
    finish: Annotated[bool, typer.Option("--finish", help="let the old keys in no longer")] = False,
    server: Annotated[
        int | None,
        typer.Option("--server", help="process id of a nats-server on this machine that takes it up at once"),
    ] = None,
    site: Annotated[bool, typer.Option("--site", help="as it was given to `bus users`")] = False,
) -> None:
    """Give the users of a running bus new keys and a new authority, in two steps; nobody is cut off between them."""
    with extra("bus"):
        from bus.security.key_rotation import begin_rotation, finish_rotation

    def rotated() -> None:
        for line in (finish_rotation if finish else begin_rotation)(out, site):
            print(line)
        if server is not None:
            try:
                os.kill(server, signal.SIGHUP)
            except OSError as error:
                fail(f"process {server} was not told to read them: {error.strerror}")

    or_fail(rotated)
    if server is None:
        print(
            f"next: each server is given {out}/users.conf and {out}/server, "
            "and reads them at `kill -HUP` or `nats-server --signal reload`"
        )
    if not finish:
        print(
            "then each role its own directory, which it reads at its next connection; when all have it:\n"
            f"  lightningbus bus rotate --out {out} --finish"
        )


def provision(
    bus: BusOption = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="servers that hold each stream [default: as it is, else 1]"),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(help="agent name whose runners' durable is made; repeat it [default: default]")
    ] = None,
    ack_wait: Annotated[
        float, typer.Option(min=0.1, max=60, help="`ack_wait` of these agents' runners")
    ] = ACK_WAIT_SECONDS,
    size: SizeOption = None,
) -> None:
    """Make the streams and consumers on a NATS server or cluster of your own; safe to repeat.

    On a bus with users nobody but admin makes consumers: run it again for each new agent name.
    """

    sizes = sizes_of(size)

    async def make() -> None:
        async with connected(bus, "provision", "admin") as at:
            more = [each for name in agent or [DEFAULT_AGENT] for each in runner_consumers(name, ack_wait)]
            await at.provision(replicas, sizes, more)

    finish(make())


@store_app.callback(invoke_without_command=True)
def store(
    context: typer.Context,
    bus: BusOption = None,
    url: Annotated[
        str | None, typer.Option(help=f"ClickHouse server [default: ${URL_VARIABLE}, else an embedded engine]")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="data of the embedded engine [default: runs/store]")] = None,
    http_port: Annotated[int | None, typer.Option(help="its HTTP port; 0 takes a free one [default: 8123]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Write every event into ClickHouse, and answer SQL over ClickHouse's HTTP interface."""
    if context.invoked_subcommand is not None:
        return
    with extra("store"):
        from store import service as room
        from store.clickhouse import client, migrations
        from store.embedded import engine
        from store.settings import StoreSettings

    given = {"data_dir": data_dir, "http_port": http_port, "health": health}
    checked = settings_of(StoreSettings, settings, url=url, **given)
    if "url" not in checked.model_fields_set:
        checked = settings_of(StoreSettings, settings, url=os.environ.get(URL_VARIABLE), **given)
    expected = (AddressInUseError, engine.EngineBusy, client.StoreUnreachable, migrations.MigrationError)
    run_role(or_fail(place, bus, "store"), "store", room.run, checked, *expected)


@store_app.command("users")
def sql_users(
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            envvar=ADMIN_VARIABLE,
            show_envvar=False,
            help=f"make them there, as a user who may [default: ${ADMIN_VARIABLE}, else print the statements]",
        ),
    ] = None,
    database: DatabaseOption = "lightningbus",
    cluster: Annotated[str | None, typer.Option(help="on all servers of a cluster")] = None,
) -> None:
    """Make users of a ClickHouse server: one who reads within limits, one who writes.

    Their passwords are in $LIGHTNINGBUS_READER_PASSWORD and $LIGHTNINGBUS_WRITER_PASSWORD; without one, no such user.
    """
    with extra("store"):
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from store.clickhouse import users
        from store.clickhouse.client import StoreUnreachable, connect
        from store.clickhouse.query_limits import explain_error

    check_names(database=database, **({"cluster": cluster} if cluster else {}))
    reader, writer = (os.environ.get(name, "") for name in (READER_VARIABLE, WRITER_VARIABLE))
    made = users.create_statements(database, cluster, reader=reader, writer=writer)
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
        fail(explain_error(error))
    print(f"made: {', '.join(name for name, given in ((users.READER, reader), (users.WRITER, writer)) if given)}")
