"""Commands that make the past again: a training step to the bit, a training run offline, a data set."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lightningbus.cli.options import DatabaseOption, JsonOption, SettingsOption, SqlOption, extra, or_fail, with_sql
from lightningbus.cli.output import show
from lightningbus.run.role_process import fail
from lightningbus.run.settings import fields_of

T = TypeVar("T")
RunOption = Annotated[str | None, typer.Option(help="which run [default: the only one there is]")]


def replay(
    step: Annotated[int, typer.Option(min=1, help="training step to make again; with --train: the first one")],
    run: RunOption = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="directory of checkpoints: the step is trained again from the one before it")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="train on the batches offline, from the first model, and write weights here")
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="with --train: the last step [default: --step]")] = None,
    settings: SettingsOption = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
) -> None:
    """Make a training step again from ClickHouse: same rows, same advantages and, with its checkpoint, same loss.

    With --train the batches of a run are trained on offline: by its own settings, or by others.
    """
    with extra("learner"):
        from lightningbus.analysis import replay as work

    if train is not None:
        from rich.progress import Progress

        from lightningbus.run.live_view import console

        changes = or_fail(fields_of, settings) if settings is not None else {}
        end = last or step
        with Progress(console=console(), transient=True) as progress:
            bar = progress.add_task("training", total=end - step + 1)
            done = _made(
                sql,
                database,
                lambda client: work.trained(client, run, (step, end), changes, train, lambda: progress.advance(bar)),
            )
        show((["step", "reward", "tokens", "loss"], list(done)), as_json)
        return
    found = _made(sql, database, lambda client: work.replayed(client, run, step, checkpoints))
    show((list(found), [tuple(found.values())]), as_json)
    if not found["same_batch"] or not found.get("same_loss", True):
        raise SystemExit(1)


def export(
    out: Annotated[Path, typer.Argument(help="chat messages as .jsonl, or tokens of every call as .parquet")],
    run: RunOption = None,
    best: Annotated[int, typer.Option(min=1, help="how many rollouts of each task, the best first")] = 1,
    least: Annotated[float, typer.Option(help="smallest reward of a rollout")] = 0.0,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
) -> None:
    """Write the best training rollouts as a supervised data set."""
    with extra("learner"):
        from lightningbus.analysis import replay as work
        from lightningbus.analysis.run_history import History

    writers = {".jsonl": work.write_chat, ".parquet": work.write_parquet}
    if out.suffix not in writers:
        fail(f"{out}: the name must end in .jsonl (chat messages) or .parquet (tokens)")
    count = _made(sql, database, lambda client: writers[out.suffix](out, History.of(client, run).best(best, least)))
    print(f"{count} lines in {out}")


def _made(sql: str | None, database: str, work: Callable[[Any], T]) -> T:
    with redirect_stdout(sys.stderr):  # verl prints; standard output is the answer's
        return with_sql(sql, database, work)
