"""Shared by the commands that train on a file or on rollouts of a run: their options, and the training."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lightningbus.cli.options import (
    check_names,
    exit_on_user_error,
    require_extra,
    run_async,
    run_until_signal,
    with_sql_client_redirected,
)
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.run_directory.new_directory import is_vacant

if TYPE_CHECKING:
    from lightningbus.analysis.run_history import RunHistory
    from lightningbus.learner.rollouts.assembler import Rollout
    from lightningbus.learner.settings.learner import LearnerSettings
    from lightningbus.run.settings.supervised import DataPart

RUNS = Path("runs")

RunDataOption = Annotated[
    str | None, typer.Option("--run", help="train on rollouts of this run, by name or directory, in place of a file")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="model whose calls are taken of the run [default: its own]")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="run file, for its learner's settings, `runs`, bus and store")
]
ModelPathOption = Annotated[
    Path | None,
    typer.Option("--model-path", help="model directory to start from [default: the run file's, or the run's]"),
]
NameOption = Annotated[
    str,
    typer.Option(
        "--name", help="name of the training and of its directory in `runs`; with --resume, a directory elsewhere too"
    ),
]
EpochsOption = Annotated[int, typer.Option("--epochs", min=1, help="passes over the data")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="directory to write the trained model to, as `weights export` does")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="continue the stopped training of this name, by its own settings")
]


@dataclass(frozen=True, slots=True)
class DataTraining:
    """A training on a file, or on rollouts of a run, as the flags of a command ask for it."""

    command: str
    part: "DataPart"
    file_kind: str
    """Content of the file, with an article, in error sentences."""
    data: Path | None
    run: str | None
    model: str | None
    config: Path | None
    model_path: Path | None
    name: str
    epochs: int
    batch_size: int | None
    lr: float | None
    out: Path | None
    is_resumed: bool
    sql: str | None
    database: str
    beta: float | None = None

    def execute(self, choose: "Callable[[RunHistory], Sequence[Rollout]]") -> None:
        """Train to the last step and write the model; ``choose`` loads a run's rollouts, or raises `UserError`."""
        place = Path(self.name)
        check_names(name=place.name if self.is_resumed else self.name)
        if self.out is not None and not is_vacant(self.out):
            exit_with(f"--out: {self.out} is not empty: give another directory, or remove it")
        with require_extra("learner"):
            from lightningbus.run.jobs import supervised_job as job
        with ExitStack() as exits:
            if self.is_resumed:
                if self.data is not None or self.run is not None or self.config is not None:
                    exit_with(
                        "--resume goes on with the data and settings of its start: leave out file, --run and --config"
                    )
                settings = exit_on_user_error(
                    job.read_record, place if len(place.parts) > 1 else RUNS / place, self.part
                )
            else:
                settings = self._build_settings(exits, choose)
            work = job.run(settings, resume=self.is_resumed)
            where = self.name if settings.runs == RUNS else settings.runs / settings.name
            resume = f": lightningbus {self.command} --resume --name {where} goes on"
            trained = run_async(run_until_signal(work, lambda: resume))
        if self.out is None:
            for command in trained.list_export_commands():
                print(f"export the model: {command}")
            return
        self._export(trained.path, self.out)

    def _build_settings(self, exits: ExitStack, choose: "Callable[[RunHistory], Sequence[Rollout]]") -> Any:
        """Return the settings of a fresh run; rollouts lie in a file until ``exits`` is closed."""
        from lightningbus.run.settings.hub_models import find_cached_models
        from lightningbus.run.settings.supervised import SupervisedRequest, build_supervised_settings, with_steps

        data, model_path = self.data, self.model_path
        if (data is None) == (self.run is None):
            exit_with(f"give {self.file_kind}, or --run with the run whose rollouts to train on")
        if self.run is not None:
            directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix=f"lightningbus-{self.command}-")))
            data, recorded = self._take_rollouts(directory, self.run, choose)
            model_path = model_path or (recorded if self.config is None else None)
        assert data is not None
        request = SupervisedRequest(
            self.name, data, self.config, model_path, self.epochs, self.batch_size, self.lr, self.part, self.beta
        )
        settings = find_cached_models(exit_on_user_error(build_supervised_settings, request))
        assert settings.learner is not None
        return with_steps(settings, exit_on_user_error(_count, settings.learner), self.epochs)

    def _take_rollouts(
        self, directory: Path, run: str, choose: "Callable[[RunHistory], Sequence[Rollout]]"
    ) -> tuple[Path, Path]:
        """Write the tokens of a run's rollouts into a file; return it, and the model that the run started from."""
        with require_extra("learner"):
            from lightningbus.analysis.replay import write_parquet
            from lightningbus.analysis.run_history import RunHistory
            from lightningbus.run.run_data.run_names import find_stored_run

        def write(client: Any) -> tuple[Path, Path]:
            history = RunHistory.open(client, find_stored_run(client, run), self.model)
            write_parquet(directory / "rollouts.parquet", choose(history))
            return directory / "rollouts.parquet", history.last_settings().model_path

        return with_sql_client_redirected(self.sql, self.database, write, run)

    def _export(self, run: Path, out: Path) -> None:
        """Write the last version of a run as a model directory."""
        from lightningbus.export.model_directory import ExportRequest
        from lightningbus.export.run_export import export_run

        with redirect_stdout(sys.stderr):
            version = run_async(export_run(ExportRequest(out), str(run), name=self.command)).version
        print(f"version {version} is in {out}")


def _count(learner: "LearnerSettings") -> int:
    """Return the number of demonstrations or pairs; raise `UserError` for data that cannot be trained on."""
    from lightningbus.learner.demonstration_files import read_demonstrations
    from lightningbus.learner.preference_files import read_preferences
    from lightningbus.run.settings.hub_models import describe_missing_model, has_model

    if not has_model(learner.model_path):
        raise UserError(f"model_path: {describe_missing_model(learner.model_path)}")
    try:
        with redirect_stdout(sys.stderr):
            return len(read_demonstrations(learner) if learner.supervised is not None else read_preferences(learner))
    except ValueError as error:
        raise UserError(str(error)) from error
