"""`evaluate`: a model, or a weight version of a run, on tasks."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from lightningbus.api.agent_function import runner_fields
from lightningbus.api.event_loop import run_blocking
from lightningbus.api.session import find_run
from lightningbus.api.settings import EvaluateSettings, build_run_settings, runs_directory
from lightningbus.api.sql_source import release_files
from lightningbus.api.table import Table
from lightningbus.api.tasks import Tasks, save_tasks
from lightningbus.api.training import CONCURRENCY
from lightningbus.api.user_errors import as_user_error
from lightningbus.run import evaluate_job
from lightningbus.run.evaluation import Evaluation
from lightningbus.run.held_out import SAMPLINGS
from lightningbus.run.results import Results
from lightningbus.run.role_process import UserError

NAME = "evaluation"
"""Of the run of a model directory, unless given."""
COLUMNS = ("version", "accuracy", "standard_error", "num_problems", "rollouts", "ok", "seconds")


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """Mean rewards with standard errors, by the way in which tasks were answered: ``result["greedy"].accuracy``."""

    directory: Path
    """The run's directory."""
    evaluations: dict[str, Evaluation]

    def __getitem__(self, sampling: str) -> Evaluation:
        """The evaluation of a sampling, ``greedy`` or ``sampled``."""
        return self.evaluations[sampling]

    def table(self) -> Table:
        """A row for each sampling."""
        rows = ((name, *(getattr(each, column) for column in COLUMNS)) for name, each in self.evaluations.items())
        return Table(("sampling", *COLUMNS), tuple(rows), "held-out reward")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def evaluate(
    agent: str | Callable[..., Any],
    tasks: Tasks,
    *,
    model: str | os.PathLike[str] | None = None,
    run: str | None = None,
    version: int | None = None,
    sampling: str | Sequence[str] = ("greedy", "sampled"),
    label: str | None = None,
    **settings: Unpack[EvaluateSettings],
) -> EvaluationResult:
    """Answer tasks with a model directory, or with a weight version of a run that has ended.

    Args:
        agent: as in `train`.
        tasks: as in `train`.
        model: a Hugging Face model directory. With ``run`` it may be left out.
        run: name of a run that has ended; its processes start again, without the learner, and its store keeps the
            rollouts.
        version: weight version of ``run``; default: the newest. The bus keeps the last few.
        sampling: ``greedy``, ``sampled`` or both.
        label: with ``run``, name under which its store keeps these rollouts apart; default: date and time.
        settings: the common settings by name, all others in the section of a run file.

    Raises:
        UserError: something the user can put right, in one sentence.
    """
    return run_blocking(
        aevaluate(agent, tasks, model=model, run=run, version=version, sampling=sampling, label=label, **settings)
    )


async def aevaluate(
    agent: str | Callable[..., Any],
    tasks: Tasks,
    *,
    model: str | os.PathLike[str] | None = None,
    run: str | None = None,
    version: int | None = None,
    sampling: str | Sequence[str] = ("greedy", "sampled"),
    label: str | None = None,
    **settings: Unpack[EvaluateSettings],
) -> EvaluationResult:
    """`evaluate` for code with an event loop."""
    samplings = [sampling] if isinstance(sampling, str) else list(sampling)
    for name in samplings or [""]:
        if name not in SAMPLINGS:
            raise UserError(f"sampling: {name!r} is none of {', '.join(SAMPLINGS)}")
    with as_user_error():
        if run is not None and "name" in settings:
            raise UserError("name: leave it out, because run= names the run")
        runs = runs_directory(settings)
        source = save_tasks(tasks, runs)
        path = os.fspath(model) if model is not None else _model_of(runs, run)
        base = {
            "name": run or NAME,
            "inference": [{"model_path": path}],
            "runners": [{**runner_fields(agent, runs), "concurrency": CONCURRENCY}],
            "learner": {"model_path": path, "tasks": source, "max_steps": 0},
            "eval": {"tasks": source},
        }
        checked = build_run_settings(base, settings, EvaluateSettings)
        job = evaluate_job.parse_job(
            checked,
            samplings,
            publishes_model=run is None,
            label_prefix="" if run is None else f"{label or time.strftime('%Y%m%d-%H%M%S')}-",
            version=version,
        )
        directory = checked.runs / checked.name
        release_files(directory)
        return EvaluationResult(directory, await evaluate_job.run(checked, job))


def _model_of(runs: Path, run: str | None) -> str:
    """The model that a run began with."""
    if run is None:
        raise UserError("give model='DIRECTORY', or run='NAME' of a run that has ended")
    directory = find_run(runs, run)
    results = Results.read(directory.path) if directory is not None else None
    if results is None:
        raise UserError(f"run {run!r} does not say what it began with: give model='DIRECTORY'")
    return str(results.model_path)
