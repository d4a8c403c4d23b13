"""What the commands share: options, checked settings, and one sentence when something is wrong."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from pydantic import BaseModel

from bus.errors import BusError
from bus.task_file import TaskFileError
from lightningbus.run.discovery import Place
from lightningbus.run.role_process import UserError, fail
from lightningbus.run.settings import checked, fields_of

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")
P = ParamSpec("P")

BusOption = Annotated[
    str | None, typer.Option("--bus", help="NATS URL [default: $LIGHTNINGBUS_BUS, else the run that is up here]")
]
SqlOption = Annotated[
    str | None, typer.Option("--sql", help="ClickHouse URL [default: $LIGHTNINGBUS_SQL, else the running store's]")
]
HealthOption = Annotated[
    str | None,
    typer.Option(help="answer /healthz, /readyz and /metrics at this port or address:port; 0: any [default: nowhere]"),
]
SettingsOption = Annotated[
    Path | None, typer.Option("--settings", help="YAML or JSON with any field of this role; options win over it")
]
DatabaseOption = Annotated[str, typer.Option(help="ClickHouse database")]
JsonOption = Annotated[bool, typer.Option("--json", help="a list of objects")]
CsvOption = Annotated[bool, typer.Option("--csv", help="comma-separated, with a header")]

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def settings_of(kind: type[S], file: Path | None, /, **given: Any) -> S:
    """Settings from a file and the options given, which win; ends with the sentence that names a wrong field."""
    fields = or_fail(fields_of, file) if file is not None else {}
    fields |= {name: value for name, value in given.items() if value is not None}
    return or_fail(checked, kind, fields, str(file) if file is not None else "settings")


def with_key(settings: S, at: Place) -> S:
    """Settings of a role, with the place's cluster key unless they name their own."""
    given = getattr(settings, "cluster_key_file", None) or at.cluster_key
    return settings.model_copy(update={"cluster_key_file": given})


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of a room; says in one sentence what to install where its packages are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'lightningbus[{name}]'")


def check_names(**names: str) -> None:
    """End with a sentence unless all are names that fit a subject."""
    for option, value in names.items():
        if not NAME.fullmatch(value):
            fail(f"--{option}: {value!r} is not a name: letters, digits, _ and -, at most 64")


def or_fail(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of ``work``; what a user can put right ends in one sentence."""
    try:
        return work(*arguments, **named)
    except (BusError, UserError, TaskFileError) as error:
        fail(error)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what a user can put right ends in one sentence."""
    return or_fail(asyncio.run, work)


def with_sql(sql: str | None, database: str, work: Callable[[Any], T]) -> T:
    """The result of blocking ``work`` with a client on the latest data; ClickHouse's errors end in one sentence."""
    with extra("store"):
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from lightningbus.run.store_discovery import sql_client
        from store.clickhouse.client import StoreUnreachable
        from store.clickhouse.query_limits import explain_error

    async def ask() -> T:
        async with sql_client(sql, database) as client:
            try:
                return await asyncio.to_thread(work, client)
            except ClickHouseError as error:
                raise UserError(explain_error(error)) from error

    try:
        return finish(ask())
    except StoreUnreachable as error:
        fail(error)
