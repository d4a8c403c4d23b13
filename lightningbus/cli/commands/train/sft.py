"""``lightningbus sft``: train on good answers, of a run's rollouts or of a file of chats."""

import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lightningbus.cli.options import (
    DatabaseOption,
    SqlOption,
    check_names,
    exit_on_user_error,
    require_extra,
    run_async,
    run_until_signal,
    with_sql_client_redirected,
)
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.run_directory.lookup import find_run_id
from lightningbus.run.run_directory.new_directory import is_vacant

if TYPE_CHECKING:
    from lightningbus.learner.settings.learner import LearnerSettings

RUNS = Path("runs")


def sft(
    data: Annotated[
        Path | None,
        typer.Argument(help="file of chats, .jsonl or .parquet with `messages`, or of tokens from `rollouts export`"),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="train on rollouts of this run, by name or directory, in place of a file")
    ] = None,
    model: Annotated[str | None, typer.Option(help="model whose calls are taken of the run [default: its own]")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="rollouts of each task to take, the best first")] = 1,
    min_reward: Annotated[float, typer.Option(help="smallest reward of a rollout to take")] = 0.0,
    query: Annotated[
        str | None,
        typer.Option(help="SQL that selects `execution_id` of the rollouts to take, in place of the best ones"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="run file, for its learner's settings, bus and store")
    ] = None,
    model_path: Annotated[
        Path | None, typer.Option(help="model directory to start from [default: the run file's, or the run's]")
    ] = None,
    name: Annotated[str, typer.Option(help="name of the training and of its directory in runs/")] = "sft",
    epochs: Annotated[int, typer.Option(min=1, help="passes over the data")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="chats or rollouts of each step [default: the run file's, else 16]")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate [default: the run file's, else 1e-5]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="directory to write the trained model to, as `weights export` does")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the stopped training of this name, by its own settings")
    ] = False,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
) -> None:
    """Train a model on good answers: the best rollouts of a run, those of a query, or a file of chats.

    The loss is on the assistant's turns. Each step publishes a weight version, as a learner on rollouts does.
    """
    check_names(name=name)
    if out is not None and not is_vacant(out):
        exit_with(f"--out: {out} is not empty: give another directory, or remove it")
    with require_extra("learner"):
        from lightningbus.run.jobs import supervised_job as job
        from lightningbus.run.settings.supervised import SupervisedRequest, build_supervised_settings, with_steps
    with ExitStack() as exits:
        if resume:
            if data is not None or run is not None or config is not None:
                exit_with(
                    "--resume goes on with the data and settings of its start: leave out file, --run and --config"
                )
            settings = exit_on_user_error(job.read_record, RUNS / name)
        else:
            if (data is None) == (run is None):
                exit_with("give a file of chats, or --run with the run whose rollouts to train on")
            if run is not None:
                directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="lightningbus-sft-")))
                data, recorded = _take_rollouts(directory, run, model, top_k, min_reward, query, sql, database)
                model_path = model_path or (recorded if config is None else None)
            assert data is not None
            request = SupervisedRequest(name, data, config, model_path, epochs, batch_size, lr)
            settings = exit_on_user_error(build_supervised_settings, request)
            assert settings.learner is not None
            settings = with_steps(settings, exit_on_user_error(_count_demonstrations, settings.learner), epochs)
        work = job.run(settings, resume=resume)
        trained = run_async(run_until_signal(work, f": lightningbus sft --resume --name {name} goes on"))
    if out is None:
        for command in trained.list_export_commands():
            print(f"export the model: {command}")
        return
    _export(trained.path, out)


def _take_rollouts(
    directory: Path,
    run: str,
    model: str | None,
    top_k: int,
    min_reward: float,
    query: str | None,
    sql: str | None,
    database: str,
) -> tuple[Path, Path]:
    """Write the tokens of a run's rollouts into a file; return it, and the model that the run started from."""
    with require_extra("learner"):
        from lightningbus.analysis.replay import write_parquet
        from lightningbus.analysis.run_history import RunHistory

    def write(client: Any) -> tuple[Path, Path]:
        history = RunHistory.open(client, find_run_id(run), model)
        rollouts = history.query_rollouts(query) if query else history.best_rollouts(top_k, min_reward)
        if not rollouts:
            wanted = "that --query names" if query else f"of a reward of at least {min_reward:g} (--min-reward)"
            raise UserError(f"run {run!r} has no rollout {wanted}")
        write_parquet(directory / "rollouts.parquet", rollouts)
        return directory / "rollouts.parquet", history.last_settings().model_path

    return with_sql_client_redirected(sql, database, write, run)


def _count_demonstrations(learner: "LearnerSettings") -> int:
    from lightningbus.learner.demonstration_files import read_demonstrations

    if not (learner.model_path / "config.json").exists():
        raise UserError(f"model_path: {learner.model_path} holds no model (no config.json)")
    try:
        with redirect_stdout(sys.stderr):
            return len(read_demonstrations(learner))
    except ValueError as error:
        raise UserError(str(error)) from error


def _export(run: Path, out: Path) -> None:
    """Write the last version of a run as a model directory."""
    from lightningbus.export.model_directory import ExportRequest, export_version
    from lightningbus.run.run_data.run_bus import open_run_bus

    async def work() -> int:
        async with open_run_bus(None, str(run), "sft", "inference") as source:  # that role may do little else
            return (await export_version(source, ExportRequest(out))).version

    with redirect_stdout(sys.stderr):
        version = run_async(work())
    print(f"version {version} is in {out}")
