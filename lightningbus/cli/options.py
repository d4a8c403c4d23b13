"""Shared by the commands: options, validated settings, and one sentence instead of a traceback."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from lightningbus.bus.errors import BusError
from lightningbus.common.aio import WorkInterruptedError, run_unless
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.common.printable import to_printable
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.settings.policy_options import NAME
from lightningbus.tasks.errors import TaskFileError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from lightningbus.bus.streams.sizes import StreamSizes
    from lightningbus.run.run_directory.discovery import BusEndpoint

S = TypeVar("S", bound="BaseModel")
T = TypeVar("T")
P = ParamSpec("P")

BusOption = Annotated[
    str | None,
    typer.Option("--bus", help="NATS URL of the bus [default: $LIGHTNINGBUS_BUS, else the run that is up here]"),
]
RunBusOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="run whose bus to read, by name or directory; it may have ended [default: the bus that is up]"
    ),
]
SqlOption = Annotated[
    str | None, typer.Option("--sql", help="ClickHouse URL [default: $LIGHTNINGBUS_SQL, else the running store's]")
]
HealthOption = Annotated[
    str | None,
    typer.Option(
        help="serve /healthz, /readyz and /metrics at this port or address:port; 0: a free port [default: off]"
    ),
]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings", help="YAML or JSON file with settings of this role; environment variables and options override it"
    ),
]
RanksOption = Annotated[
    int, typer.Option(min=1, help="with --dry-run: number of the learner's processes, each with a GPU")
]
GpuMemoryOption = Annotated[
    float | None,
    typer.Option(
        min=1, help="with --dry-run: memory of each GPU in GiB [default: this machine's GPU, else its main memory]"
    ),
]
GpuTflopsOption = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="with --dry-run: TFLOP/s that training reaches on a GPU [default: measured on this machine]"
    ),
]
DatabaseOption = Annotated[str, typer.Option(help="name of the ClickHouse database")]
RunOption = Annotated[str, typer.Option(help="show only this run, by its name or directory")]
JsonOption = Annotated[bool, typer.Option("--json", help="print a JSON list of objects")]
CsvOption = Annotated[bool, typer.Option("--csv", help="print comma-separated values with a header")]


class RoleGroup(TyperGroup):
    """Command group of a role that has subcommands beside its flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; those that begin with a flag of the role's settings are no subcommand."""
        rest = super().parse_args(ctx, args)
        first = next(iter(ctx._protected_args), "")
        if first.startswith("-"):
            ctx.args, ctx._protected_args = [*ctx._protected_args, *ctx.args], []
        return rest


DEFAULT_AGENT = "default"
SizeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        help="NAME=SIZE of a stream, e.g. train_rollouts_mib=8192; names are tasks_mib, train_rollouts_mib, "
        "eval_rollouts_mib, events_mib, grading_mib, max_ack_pending; repeatable [default: unchanged, else as shipped]",
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name of a model that a learner trains; repeatable [default: policy]"),
]


def load_settings(kind: type[S], role: str, file: Path | None, flags: Sequence[str], /, **options: Any) -> S:
    """Read a role's settings from its file, the environment, flags and options; a later source wins.

    A wrong field ends the process with a sentence that names it.
    """
    return exit_on_user_error(_load_settings, kind, role, file, flags, options)


def _load_settings(kind: type[S], role: str, file: Path | None, flags: Sequence[str], options: Mapping[str, Any]) -> S:
    from lightningbus.run.settings.run_file import load_fields, validate_settings
    from lightningbus.run.settings.sources import (
        merge,
        name_origins,
        read_environment,
        read_flags,
        warn_about_variables,
    )

    warn_about_variables({role: kind})

    on_line = merge(
        read_flags(kind, role, flags), {name: value for name, value in options.items() if value is not None}
    )
    fields = merge(load_fields(file) if file is not None else {}, read_environment(kind, role), on_line)
    origins = name_origins(kind, role, on_line)
    return validate_settings(kind, fields, str(file) if file is not None else "settings", origins)


def with_api_key(settings: S, at: "BusEndpoint") -> S:
    """Return a role's settings with the endpoint's inference API key, unless they name their own."""
    key_file = getattr(settings, "inference_api_key_file", None) or at.inference_api_key
    return settings.model_copy(update={"inference_api_key_file": key_file})


@contextmanager
def require_extra(name: str) -> Iterator[None]:
    """Wrap imports of a package; a missing module ends the process with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        exit_with(describe_missing_module(error.name, name))


def check_names(**names: str) -> None:
    """End the process with a sentence unless all values are valid names for a subject."""
    for option, value in names.items():
        if not NAME.fullmatch(value):
            exit_with(f"--{option}: {value!r} is not a name: letters, digits, _ and -, at most 64")


def exit_on_user_error(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return the result of ``work``; an error that the user can correct ends the process with one sentence."""
    try:
        return work(*arguments, **named)
    except (BusError, UserError, TaskFileError) as error:
        exit_with(error)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; an error that the user can correct ends the process with one sentence."""
    return exit_on_user_error(asyncio.run, work)


def with_sql_client(sql: str | None, database: str, work: Callable[[Any], T], run: str | None = None) -> T:
    """Return the result of blocking ``work`` with a client on the data of ``run``, else of the latest run.

    A store that has lost rows is a warning. ClickHouse's errors end the process with one sentence.
    """
    with require_extra("store"):
        from lightningbus.run.run_data.run_data import RunData
        from lightningbus.run.run_data.store_files import FilesInUseError

    def ask() -> T:
        with closing(RunData.of(run or "", sql, database)) as data:
            try:
                return data.ask(work)
            except FilesInUseError as error:
                raise UserError(f"{error}; give the store's address with --sql") from error
            finally:
                if data.damage:
                    print(to_printable(f"warning: {data.damage}"), file=sys.stderr)

    return exit_on_user_error(ask)


def with_sql_client_redirected(sql: str | None, database: str, work: Callable[[Any], T], run: str | None = None) -> T:
    """Call `with_sql_client` with standard output redirected to standard error.

    Libraries such as verl print; standard output belongs to the command's result.
    """
    with redirect_stdout(sys.stderr):
        return with_sql_client(sql, database, work, run)


def parse_sizes(options: list[str] | None) -> "StreamSizes":
    """Parse the values of ``--size``; an invalid one ends the process with a sentence."""
    from lightningbus.bus.streams.sizes import StreamSizes
    from lightningbus.run.settings.run_file import validate_settings

    fields = dict(option.partition("=")[::2] for option in options or ())
    return exit_on_user_error(validate_settings, StreamSizes, fields, "--size")


async def run_until_signal(job: Coroutine[Any, Any, T], advise: Callable[[], str] = str) -> T:
    """Return the result of ``job``; raises `UserError`, with the advice of that moment, when a signal stops it."""
    from lightningbus.run.processes.role_process import on_stop_signals

    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    try:
        return await run_unless(stop.wait(), job, retry_after=None)
    except WorkInterruptedError:
        raise UserError(f"stopped before the end{advise()}") from None
