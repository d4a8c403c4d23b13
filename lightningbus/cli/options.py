"""What the commands share: options, checked settings, and one sentence when something is wrong.

It imports little: a question to a run's files needs neither the bus nor the settings of roles.
"""

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
    str | None, typer.Option("--bus", help="NATS URL [default: $LIGHTNINGBUS_BUS, else the run that is up here]")
]
RunBusOption = Annotated[
    str | None, typer.Option("--run", help="name or directory of a run, up or ended [default: the bus that is up]")
]
SqlOption = Annotated[
    str | None, typer.Option("--sql", help="ClickHouse URL [default: $LIGHTNINGBUS_SQL, else the running store's]")
]
HealthOption = Annotated[
    str | None,
    typer.Option(help="answer /healthz, /readyz and /metrics at this port or address:port; 0: any [default: nowhere]"),
]
SettingsOption = Annotated[
    Path | None,
    typer.Option("--settings", help="YAML or JSON with any field of this role; variables and options win over it"),
]
RanksOption = Annotated[
    int, typer.Option(min=1, help="with --dry-run: processes, each with a GPU, that the learner is to have")
]
GpuMemoryOption = Annotated[
    float | None,
    typer.Option(min=1, help="with --dry-run: GiB of each GPU [default: of the GPU here, else this machine's memory]"),
]
GpuTflopsOption = Annotated[
    float | None,
    typer.Option(min=0.001, help="with --dry-run: TFLOP/s that training reaches on a GPU [default: measured here]"),
]
DatabaseOption = Annotated[str, typer.Option(help="ClickHouse database")]
RunOption = Annotated[str, typer.Option(help="one run only, by its name or its directory")]
JsonOption = Annotated[bool, typer.Option("--json", help="a list of objects")]
CsvOption = Annotated[bool, typer.Option("--csv", help="comma-separated, with a header")]


class RoleGroup(TyperGroup):
    """A role's command that has subcommands beside its flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what begins with a flag that is no option of the command as the role's flags, not as a subcommand."""
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
        help="how much a stream holds, as train_rollouts_mib=8192: tasks_mib, train_rollouts_mib, eval_rollouts_mib, "
        "events_mib, max_ack_pending; repeat it [default: as it is, else as shipped]",
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy", help="model that a learner trains; repeat it for several [default: policy]"),
]


def load_settings(kind: type[S], role: str, file: Path | None, flags: Sequence[str], /, **options: Any) -> S:
    """Settings of a role from its file, the environment, flags and options; a later source wins.

    Ends with the sentence that names a wrong field.
    """
    return exit_on_user_error(_load_settings, kind, role, file, flags, options)


def _load_settings(kind: type[S], role: str, file: Path | None, flags: Sequence[str], options: Mapping[str, Any]) -> S:
    from lightningbus.run.settings.run_file import load_fields, validate_settings
    from lightningbus.run.settings.sources import merge, name_origins, read_environment, read_flags

    on_line = merge(
        read_flags(kind, role, flags), {name: value for name, value in options.items() if value is not None}
    )
    fields = merge(load_fields(file) if file is not None else {}, read_environment(kind, role), on_line)
    origins = name_origins(kind, role, on_line)
    return validate_settings(kind, fields, str(file) if file is not None else "settings", origins)


def with_api_key(settings: S, at: "BusEndpoint") -> S:
    """Settings of a role, with the place's inference API key unless they name their own."""
    key_file = getattr(settings, "inference_api_key_file", None) or at.inference_api_key
    return settings.model_copy(update={"inference_api_key_file": key_file})


@contextmanager
def require_extra(name: str) -> Iterator[None]:
    """Around the imports of a room; says in one sentence what to install where a module is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        exit_with(describe_missing_module(error.name, name))


def check_names(**names: str) -> None:
    """End with a sentence unless all are names that fit a subject."""
    for option, value in names.items():
        if not NAME.fullmatch(value):
            exit_with(f"--{option}: {value!r} is not a name: letters, digits, _ and -, at most 64")


def exit_on_user_error(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of ``work``; what a user can put right ends in one sentence."""
    try:
        return work(*arguments, **named)
    except (BusError, UserError, TaskFileError) as error:
        exit_with(error)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what a user can put right ends in one sentence."""
    return exit_on_user_error(asyncio.run, work)


def with_sql_client(sql: str | None, database: str, work: Callable[[Any], T], run: str | None = None) -> T:
    """The result of blocking ``work`` with a client on a run's data, else the latest.

    ClickHouse's errors end in one sentence.
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

    return exit_on_user_error(ask)


def with_sql_client_redirected(sql: str | None, database: str, work: Callable[[Any], T], run: str | None = None) -> T:
    """`with_sql_client` for work that prints to standard output, which belongs to the result: verl does."""
    with redirect_stdout(sys.stderr):
        return with_sql_client(sql, database, work, run)


def parse_sizes(options: list[str] | None) -> "StreamSizes":
    """What ``--size`` says; ends the process with a sentence where it says nothing that is known."""
    from lightningbus.bus.streams.sizes import StreamSizes
    from lightningbus.run.settings.run_file import validate_settings

    fields = dict(option.partition("=")[::2] for option in options or ())
    return exit_on_user_error(validate_settings, StreamSizes, fields, "--size")


async def run_until_signal(job: Coroutine[Any, Any, T], advice: str = "") -> T:
    """The result of ``job``; raises `UserError`, with ``advice``, when a signal stops it."""
    from lightningbus.run.processes.role_process import on_stop_signals

    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    try:
        return await run_unless(stop.wait(), job, retry_after=None)
    except WorkInterruptedError:
        raise UserError(f"stopped before the end{advice}") from None
