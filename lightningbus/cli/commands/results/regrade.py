"""``lightningbus regrade``: give stored rollouts new rewards."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lightningbus.cli.options import (
    BusOption,
    DatabaseOption,
    JsonOption,
    RunOption,
    exit_on_user_error,
    load_settings,
    require_extra,
    run_async,
)
from lightningbus.cli.output import print_result
from lightningbus.run.errors import UserError

if TYPE_CHECKING:
    from lightningbus.analysis.regrading import RegradedRun
    from lightningbus.graders.settings import GraderSettings


def regrade(
    settings: Annotated[Path, typer.Argument(help="YAML file with the graders: the section `grader` of a run file")],
    name: Annotated[str, typer.Option(help="name of this grading, by which `steps replay --grading` finds it")],
    run: RunOption = "",
    mode: Annotated[Literal["train", "eval", "all"], typer.Option(help="rollouts to grade")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="most rollouts to grade [default: all]")] = None,
    bus: BusOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
) -> None:
    """Grade stored rollouts again, without one call of the model: new events, and the old rewards stay.

    A second start with the same name goes on with rollouts that have no reward yet.
    """
    from lightningbus.cli.options import check_names
    from lightningbus.graders.settings import GraderSettings

    check_names(name=name)
    checked = load_settings(GraderSettings, "grader", settings, [])
    with require_extra("store"):
        import lightningbus.analysis.regrading  # noqa: F401
    work = _regrade(checked, name, run, "" if mode == "all" else mode, limit, bus, database)
    done = exit_on_user_error(lambda: run_async(work))
    fields = asdict(done)
    print_result((list(fields), [tuple(fields.values())]), as_json)
    if done.num_failed:
        raise SystemExit(1)


async def _regrade(
    settings: "GraderSettings", name: str, run: str, mode: str, limit: int | None, bus: str | None, database: str
) -> "RegradedRun":
    from rich.progress import Progress

    from lightningbus.analysis.regrading import Regrading
    from lightningbus.graders.errors import GraderError
    from lightningbus.graders.grading import open_grading
    from lightningbus.run.display.live_view import console
    from lightningbus.run.run_data.open_store import open_store

    screen = console()
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("grading", total=None)
        try:
            async with open_store(bus, run or None, database, "regrade") as at, open_grading(settings) as grading:
                work = Regrading(
                    at.bus, at.client, grading, settings.compute_sha256(), run=at.run_id, name=name, mode=mode
                )
                return await work.run(limit, lambda done, total: progress.update(bar, completed=done, total=total))
        except GraderError as error:
            raise UserError(str(error)) from error
