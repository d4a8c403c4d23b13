"""``lightningbus steps``: repeat a training step, or train a run's batches offline."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lightningbus.cli.options import (
    DatabaseOption,
    JsonOption,
    SettingsOption,
    SqlOption,
    exit_on_user_error,
    require_extra,
    with_sql_client_redirected,
)
from lightningbus.cli.output import print_result
from lightningbus.run.settings.run_file import load_fields

app = typer.Typer(help="Repeat training steps from ClickHouse.", no_args_is_help=True, rich_markup_mode=None)


RunOption = Annotated[str | None, typer.Option(help="id of the run [default: the only one in the store]")]
ModelOption = Annotated[str | None, typer.Option(help="name of the trained model [default: the only one]")]


@app.command()
def replay(
    step: Annotated[int, typer.Option(min=1, help="training step to repeat; with --train: the first step")],
    run: RunOption = None,
    model: ModelOption = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="directory of checkpoints, to train the step again from the one before it")
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(help="directory to write weights to, after training on the batches offline from the first model"),
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="with --train: the last step [default: --step]")] = None,
    grading: Annotated[
        str, typer.Option(help="grading of `lightningbus regrade` whose rewards count [default: those of the run]")
    ] = "",
    settings: SettingsOption = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
) -> None:
    """Repeat a training step from ClickHouse: same rows, same advantages and, with its checkpoint, same loss.

    With --train, train a run's batches offline: by its own settings, or by others.
    """
    with require_extra("learner"):
        from lightningbus.analysis import replay as work
        from lightningbus.run.run_data.run_names import find_stored_run

    def find_id(client: Any) -> str | None:
        return run and find_stored_run(client, run)

    if train is not None:
        from rich.progress import Progress

        from lightningbus.run.display.live_view import console

        changes = exit_on_user_error(load_fields, settings) if settings is not None else {}
        end = last or step
        screen = console()
        with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
            bar = progress.add_task("training", total=end - step + 1)
            done = with_sql_client_redirected(
                sql,
                database,
                lambda client: work.train_offline(
                    client, find_id(client), model, (step, end), changes, train, lambda: progress.advance(bar), grading
                ),
                run,
            )
        print_result((["step", "reward", "tokens", "loss"], list(done)), as_json)
        return
    result = with_sql_client_redirected(
        sql, database, lambda client: work.replay_step(client, find_id(client), model, step, checkpoints, grading), run
    )
    print_result((list(result), [tuple(result.values())]), as_json)
    if not result["same_batch"] or not result.get("same_loss", True):
        raise SystemExit(1)
