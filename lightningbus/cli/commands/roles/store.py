"""``lightningbus store``: write events into ClickHouse, answer SQL; users and backups of a ClickHouse server."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.lazy_group import ANY_SETTING
from lightningbus.cli.options import (
    BusOption,
    DatabaseOption,
    HealthOption,
    RoleGroup,
    SettingsOption,
    check_names,
    exit_on_user_error,
    load_settings,
    require_extra,
)
from lightningbus.common.listeners import AddressInUseError
from lightningbus.run.errors import exit_with
from lightningbus.run.processes.role_process import run_role
from lightningbus.run.run_directory.discovery import discover_bus
from lightningbus.store.clickhouse.backups import BackupPlace, build_backup, build_restore, explain_restore_error

app = typer.Typer(rich_markup_mode=None, cls=RoleGroup)


READER_VARIABLE, WRITER_VARIABLE = "LIGHTNINGBUS_READER_PASSWORD", "LIGHTNINGBUS_WRITER_PASSWORD"


URL_VARIABLE, ADMIN_VARIABLE = "LIGHTNINGBUS_STORE_URL", "LIGHTNINGBUS_ADMIN_SQL"
"""Environment variables for addresses with a password: arguments of a process are visible to all users of a machine."""
BACKUP_VARIABLE, BACKUP_KEYS = "LIGHTNINGBUS_BACKUP_URL", ("LIGHTNINGBUS_BACKUP_ACCESS", "LIGHTNINGBUS_BACKUP_SECRET")
BACKUP_SECONDS = 24 * 3600
COPY_FILES = (
    "the embedded store of a run is a directory: once the run has ended, copy runs/NAME/store by `cp -a` or `rsync -a`"
)
NO_SERVER = f"say which ClickHouse server by --sql or ${ADMIN_VARIABLE}; {COPY_FILES}"
AdminOption = Annotated[
    str | None,
    typer.Option(
        "--sql",
        envvar=ADMIN_VARIABLE,
        show_envvar=False,
        help=f"ClickHouse URL of a user with that right [default: ${ADMIN_VARIABLE}]",
    ),
]
PlaceOption = Annotated[
    str | None,
    typer.Option(
        "--place",
        envvar=BACKUP_VARIABLE,
        show_envvar=False,
        help=f"URL of the directory of backups in S3, as the server reaches it [default: ${BACKUP_VARIABLE}]",
    ),
]


@app.callback(invoke_without_command=True, context_settings=ANY_SETTING)
def store(
    context: typer.Context,
    bus: BusOption = None,
    url: Annotated[
        str | None, typer.Option(help=f"URL of a ClickHouse server [default: ${URL_VARIABLE}, else an embedded engine]")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="data directory of the embedded engine [default: runs/store]")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="HTTP port of the embedded engine; 0 takes a free one [default: 8123]")
    ] = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Write every event into ClickHouse, and answer SQL over ClickHouse's HTTP interface.

    Every field of the store's settings is an option too, such as --retention-days 30.
    """
    if context.invoked_subcommand is not None:
        return
    with require_extra("store"):
        from lightningbus.store import service as role
        from lightningbus.store.clickhouse import client, migrations
        from lightningbus.store.embedded import engine
        from lightningbus.store.settings import StoreSettings

    options = {"url": url, "data_dir": data_dir, "http_port": http_port, "health_address": health_address}
    checked = load_settings(StoreSettings, "store", settings, context.args, **options)
    expected = (AddressInUseError, engine.EngineBusyError, client.StoreUnreachableError, migrations.MigrationError)
    run_role(exit_on_user_error(discover_bus, bus, "store"), "store", role.run, checked, *expected)


@app.command("create-users")
def create_users(
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            envvar=ADMIN_VARIABLE,
            show_envvar=False,
            help=f"ClickHouse URL of a user with that right [default: ${ADMIN_VARIABLE}, else print the statements]",
        ),
    ] = None,
    database: DatabaseOption = "lightningbus",
    cluster: Annotated[
        str | None, typer.Option(help="name of a cluster, to create the users on all of its servers")
    ] = None,
) -> None:
    """Create two users of a ClickHouse server: one reads within limits, one writes.

    Their passwords are in $LIGHTNINGBUS_READER_PASSWORD and $LIGHTNINGBUS_WRITER_PASSWORD. A user without a password is
    not created.
    """
    with require_extra("store"):
        from lightningbus.store.clickhouse import users

    check_names(database=database, **({"cluster": cluster} if cluster else {}))
    reader, writer = (os.environ.get(name, "") for name in (READER_VARIABLE, WRITER_VARIABLE))
    statements = users.create_statements(database, cluster, reader=reader, writer=writer)
    if not statements:
        exit_with(f"put a password into ${READER_VARIABLE}, ${WRITER_VARIABLE}, or both: no user is made without one")
    if sql is None:
        print(";\n".join(statements) + ";")
        return
    _execute(sql, *statements)
    print(f"made: {', '.join(name for name, password in ((users.READER, reader), (users.WRITER, writer)) if password)}")


@app.command("backup")
def backup(
    name: Annotated[
        str | None, typer.Argument(help="name of the backup [default: the time, as 20260131T235959]")
    ] = None,
    sql: AdminOption = None,
    place: PlaceOption = None,
    base: Annotated[str, typer.Option(help="earlier backup: only what is new since is written")] = "",
    database: DatabaseOption = "lightningbus",
) -> None:
    """Back up the database of a ClickHouse server to S3, and print the backup's name.

    The keys of S3 are in $LIGHTNINGBUS_BACKUP_ACCESS and $LIGHTNINGBUS_BACKUP_SECRET. Without them the server takes its
    own. Runs go on meanwhile.
    """
    name = name or datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    check_names(database=database, name=name, **({"base": base} if base else {}))
    server = sql or exit_with(NO_SERVER)
    statement = build_backup(database, _find_place(place), name, base)
    _execute(server, statement, timeout_seconds=BACKUP_SECONDS, advice=COPY_FILES)
    print(name)


@app.command("restore")
def restore(
    name: Annotated[str, typer.Argument(help="name of the backup")],
    sql: AdminOption = None,
    place: PlaceOption = None,
    new_name: Annotated[
        str, typer.Option("--as", help="name of the database that is made [default: its old one]")
    ] = "",
    database: DatabaseOption = "lightningbus",
) -> None:
    """Restore a database of a ClickHouse server from a backup; one whose tables have rows is refused.

    Keys are as for `lightningbus store backup`. A backup with a base needs that one too.
    """
    check_names(database=database, name=name, **({"as": new_name} if new_name else {}))
    server = sql or exit_with(NO_SERVER)
    statement = build_restore(database, _find_place(place), name, new_name)
    explain = partial(explain_restore_error, database=new_name or database)
    _execute(server, statement, timeout_seconds=BACKUP_SECONDS, advice=COPY_FILES, explain=explain)


def _find_place(url: str | None) -> BackupPlace:
    if not url:
        exit_with(f"say where backups are by --place or ${BACKUP_VARIABLE}: https://BUCKET.s3.amazonaws.com/DIRECTORY")
    return BackupPlace(url, *(os.environ.get(variable, "") for variable in BACKUP_KEYS))


def _execute(
    sql: str,
    *statements: str,
    timeout_seconds: int | None = None,
    advice: str = "",
    explain: Callable[[str], str] = lambda message: "",
) -> None:
    """Execute statements on a ClickHouse server; end the program with a sentence where it refuses one.

    ``advice`` follows where this user may only read, as each user of an embedded store. ``explain`` gives the sentence
    for an error of ClickHouse; empty: the error itself.
    """
    with require_extra("store"):
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from lightningbus.store.clickhouse.client import TIMEOUT_SECONDS, StoreUnreachableError, connect
        from lightningbus.store.clickhouse.query_limits import explain_error

    try:
        client = connect(sql, None, timeout_seconds or TIMEOUT_SECONDS)
        for statement in statements:
            client.command(statement)
    except StoreUnreachableError as error:
        exit_with(error)
    except ClickHouseError as error:
        hint = f"; {advice}" if advice and "(READONLY)" in str(error) else ""
        exit_with(explain(str(error)) or f"{explain_error(error)}{hint}")
