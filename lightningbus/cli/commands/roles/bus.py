"""``lightningbus bus``: run a nats-server with all streams, and create its users."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import DEFAULT_POLICIES, runner_consumers
from lightningbus.cli.options import (
    DEFAULT_AGENT,
    PolicyOption,
    SizeOption,
    check_names,
    exit_on_user_error,
    parse_sizes,
    require_extra,
    run_async,
)
from lightningbus.common.observability.logs import bind_process_context, log_standard_output
from lightningbus.run.errors import exit_with
from lightningbus.run.processes.role_process import on_hangup, on_stop_signals
from lightningbus.run.run_directory.discovery import find_credentials, find_credentials_directory

log = logging.getLogger(__name__)

app = typer.Typer(rich_markup_mode=None)


NO_USERS = "bus: it has no users: whoever reaches it may do anything (--credentials adds users)"


@app.callback(invoke_without_command=True)
def bus(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 4222,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    dir: Annotated[Path, typer.Option(help="directory of the streams")] = Path("runs/bus"),
    sync_interval: Annotated[
        str,
        typer.Option(help="longest time until a write is on disk; always: every write survives a power loss"),
    ] = "2m",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="let any client connect without credentials, also beyond loopback")
    ] = False,
    size: SizeOption = None,
    policy: PolicyOption = None,
) -> None:
    """Run a nats-server with all streams, until Ctrl-C; restart it when it dies.

    `kill -HUP` of this process lets the server read new keys and certificates.
    """
    from lightningbus.bus.embedded.nats_server import nats_server
    from lightningbus.common.aio import first_completed
    from lightningbus.common.listeners import find_reachable_host, is_loopback

    if context.invoked_subcommand is not None:
        return
    users, sizes = find_credentials_directory(), parse_sizes(size)
    policies = policy or DEFAULT_POLICIES

    log_standard_output()
    bind_process_context(role="bus")

    async def serve() -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        async with (
            nats_server(dir, host, port, sync_interval, users, insecure, sizes.more_mib) as server,
            Bus.connect(server.url, name="provision", credentials=find_credentials("admin")) as admin,
        ):
            on_hangup(asyncio.get_running_loop(), server.reload, stop)
            more = runner_consumers(DEFAULT_AGENT) if users is not None else ()
            await admin.provision(sizes=sizes, more=more, policies=policies)
            reachable = f"nats://{find_reachable_host(host)}:{server.port}"
            print(f"bus: {server.url if users is not None else reachable}", flush=True)
            if users is None:
                if reachable != server.url:
                    print(f"bus: on this machine it is at {server.url} too", file=sys.stderr)
                if is_loopback(host):  # elsewhere the server has warned
                    print(NO_USERS, file=sys.stderr)
            elif reachable != server.url:  # a client checks the name
                print(f"bus: others reach port {server.port} by a name or address in its certificate", file=sys.stderr)
            keeping = admin.keep_provisioned(sizes, more, policies)
            await first_completed(server.supervise(), keeping, report_refusal(admin, users), stop.wait())

    run_async(serve())


async def report_refusal(admin: Bus, users: Path | None) -> None:
    """Log an error once the server has refused its admin for good, and wait for ever: clients do without it.

    ``users`` is the directory of ``--credentials``. Raises `BusError` if the connection does not try again.
    """
    await admin.closed.wait()
    if admin.nc.is_closed:
        raise admin.failure
    log.error(
        "the server does not let its own admin in, so missing streams are not made again: %s; copy %s of the new keys "
        "here, which is read at the next try. Clients are served meanwhile",
        admin.failure,
        f"{users}/admin" if users is not None else "the directory `admin`",
    )
    await asyncio.Event().wait()


@app.command("create-users")
def create_users_(
    out: Annotated[Path, typer.Option(help="directory for the created keys; keep it private")],
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="also create certificates: the bus uses TLS and accepts only clients with a certificate"
        ),
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address of the server in its certificate; repeatable"),
    ] = None,
    leaf: Annotated[
        bool, typer.Option("--leaf", help="create the users of a leaf node, the server of a remote site")
    ] = False,
    signing: Annotated[
        Path | None,
        typer.Option(help="directory of a role of the cluster with its signing keys: `inference` or `client`"),
    ] = None,
    policy: PolicyOption = None,
) -> None:
    """Create a user of the bus for each role, with no more rights than it needs, and the server's configuration.

    With several --policy each learner has a user `learner-MODEL`, for its own model only.
    """
    for model in policy or ():
        check_names(policy=model)
    with require_extra("bus"):
        from lightningbus.bus.security.users import create_users

    def make() -> None:
        for line in create_users(out, tls, host or (), leaf, signing, policy or DEFAULT_POLICIES):
            print(line)

    exit_on_user_error(make)
    if leaf:
        print(
            "next, on the host of the site's server, with `leaf-runner` and `leaf-inference` of the cluster:\n"
            f"  SERVER_NAME=site1 nats-server -c leaf.conf    # deploy/hosts/leaf.conf, with {out} for `site` in it\n"
            "and each of the site's roles with its own directory:\n"
            f"  lightningbus --credentials {out}/runner runner --bus nats://ADDRESS:4222 ..."
        )
        return
    print(
        "next, a server that knows them:\n"
        f"  lightningbus --credentials {out} bus{' --host ADDRESS' if tls else ''}"
        f"        # or `include` {out}/users.conf in your own\n"
        "and each role with its own directory, which is all that has to go to its machine:\n"
        f"  lightningbus --credentials {out}/runner runner --bus nats://ADDRESS:4222 ..."
    )


@app.command()
def rotate(
    out: Annotated[Path, typer.Option(help="directory that `bus create-users` wrote")],
    finish: Annotated[bool, typer.Option("--finish", help="second step: reject the old keys")] = False,
    server: Annotated[
        int | None,
        typer.Option("--server", help="process id of a nats-server or `bus` on this machine to reload at once"),
    ] = None,
    leaf: Annotated[
        bool, typer.Option("--leaf", help="same as for `bus create-users`: the users are those of a leaf node")
    ] = False,
) -> None:
    """Give the users of a running bus new keys and a new authority, in two steps that interrupt no connection."""
    with require_extra("bus"):
        from lightningbus.bus.security.key_rotation import begin_rotation, finish_rotation

    def rotated() -> None:
        for line in (finish_rotation if finish else begin_rotation)(out, leaf):
            print(line)
        if server is not None:
            try:
                os.kill(server, signal.SIGHUP)
            except OSError as error:
                exit_with(f"process {server} was not told to read them: {error.strerror}")

    exit_on_user_error(rotated)
    if server is None:
        print(
            f"next: each server is given {out}/users.conf and {out}/server, and {out}/admin where `lightningbus bus` "
            "runs it, and reads them at `kill -HUP` of either process or `nats-server --signal reload`"
        )
    if not finish:
        print(
            "then each role its own directory, which it reads at its next connection; when all have it:\n"
            f"  lightningbus bus rotate --out {out} --finish"
        )
