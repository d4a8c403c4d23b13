"""The result of a training job from Python: as a table, and as a model directory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.api.evaluation_table import tabulate_evaluations
from lightningbus.api.sessions.table import Table
from lightningbus.api.user_errors import as_user_error
from lightningbus.common.event_loop import run_blocking
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.run.errors import UserError
from lightningbus.run.results.run_record import identify_record
from lightningbus.run.results.train_result import JobResult


@dataclass(frozen=True, slots=True, repr=False)
class TrainResult(JobResult):
    """Result of a training job: its ``directory``, its ``figures`` of `results.json`, and all ``evaluations`` in order.

    Its weight version with the highest held-out reward is its best version; None: none. Of equal ones it is the better
    one in the other evaluations that all of them have, then the newest.
    """

    record: tuple[int, int] | None = None
    """Identity of the run's own record, by which its directory is found again where a new run has its name."""

    def table(self) -> Table:
        """Return a row for each evaluation of the main model, with pass@k where tasks have several answers."""
        return tabulate_evaluations("evaluation", [(each.label, each) for each in self.evaluations])

    def df(self) -> Any:
        """Convert `table` to a ``pandas.DataFrame``; raises `UserError` where pandas is not installed."""
        return self.table().df()

    def export(
        self,
        directory: str | os.PathLike[str],
        version: int | None = None,
        *,
        best: bool = False,
        adapter: bool = False,
        model: str | None = None,
        base_model: str | os.PathLike[str] | None = None,
        base_name: str | None = None,
        force: bool = False,
        bus: str | None = None,
    ) -> int:
        """Write a weight version as a model directory, as ``lightningbus weights export`` does; returns the version.

        Args:
            directory: a directory that does not exist, or is empty.
            version: the version; default: the one that nodes serve, which is the newest.
            best: take the version with the best held-out reward.
            adapter: write LoRA's adapters alone, in PEFT's format.
            model: name of the model, where the run trains several.
            base_model: directory of the base model, for its configuration and tokenizer; default: the run's model.
            base_name: name of the base model in the card and in adapters; default: its name on the Hub, if known.
            force: write a version even if it may not be served.
            bus: address of the run's bus, where it is not the run's own.

        Raises:
            UserError: something the user can put right, in one sentence.
        """
        return run_blocking(
            self.aexport(
                directory,
                version,
                best=best,
                adapter=adapter,
                model=model,
                base_model=base_model,
                base_name=base_name,
                force=force,
                bus=bus,
            )
        )

    async def aexport(
        self,
        directory: str | os.PathLike[str],
        version: int | None = None,
        *,
        best: bool = False,
        adapter: bool = False,
        model: str | None = None,
        base_model: str | os.PathLike[str] | None = None,
        base_name: str | None = None,
        force: bool = False,
        bus: str | None = None,
    ) -> int:
        """Do what `export` does, in an event loop."""
        try:
            from lightningbus.export.model_directory import ExportRequest
            from lightningbus.export.run_export import export_run
        except ModuleNotFoundError as error:
            raise UserError(describe_missing_module(error.name, "learner")) from error

        if best and version is not None:
            raise UserError("export: give version= or best=True, not both")
        request = ExportRequest(
            Path(directory),
            version,
            model,
            Path(base_model) if base_model is not None else None,
            base_name,
            is_adapter=adapter,
            is_best=best,
            is_forced=force,
        )
        with as_user_error():
            return (await export_run(request, str(self._find_directory()), bus)).version

    def _find_directory(self) -> Path:
        """Find the run's directory, which a new run of its name moved aside; raises `UserError` if it is gone."""
        directory = self.directory.absolute()
        if self.record is None or identify_record(directory) == self.record:
            return directory
        others = directory.parent.iterdir() if directory.parent.is_dir() else ()
        if moved := next((each for each in others if identify_record(each) == self.record), None):
            return moved
        raise UserError(
            f"the run of this result is gone: {directory} does not hold it, nor does another directory there"
        )
