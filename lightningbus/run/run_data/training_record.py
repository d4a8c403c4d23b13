"""Progress of a run's training, from the files of its directory alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.bus.errors import BusError
from lightningbus.learner.checkpointing.checkpoint import find_last_step
from lightningbus.run.errors import UserError
from lightningbus.run.results.results import Results
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.run_times import JOB
from lightningbus.store.ui.run_state import RunState


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Training of a run, by its files; None: not known."""

    has_training: bool
    """Whether a training job or a learner is on record."""
    results: Results | None = None
    """Figures of a training job."""
    learners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the learners by model, that of the model which agents call by name first."""
    steps: int | None = None
    """Training steps made; of several models, those of the slowest. Without a job, those of the last checkpoint."""
    max_steps: int | None = None
    problem: str = ""
    """Why a file cannot be read; empty: all can."""


def read_training(run: RunDirectory) -> TrainingRecord:
    """Read what is on record of a run's training."""
    results, problem = None, ""
    learners: dict[str, dict[str, Any]] = {}
    try:
        results = Results.read(run.path)
        learners = run.read_learners()
    except (UserError, BusError) as error:
        problem = str(error)
    trained = {model: settings for model, settings in learners.items() if settings.get("max_steps")}
    has_training = results is not None or bool(trained) or (run.path / JOB).exists()
    if results is not None:
        return TrainingRecord(has_training, results, learners, results.steps, results.max_steps, problem)
    steps, max_steps = _find_slowest(run.path / "checkpoints", trained)
    return TrainingRecord(has_training, None, learners, steps, max_steps, problem)


def choose_state(is_up: bool, training: TrainingRecord) -> RunState:
    """Choose the state of a run by its files; a training that has not reached its end was stopped. Pure."""
    if is_up:
        return RunState.RUNNING
    if not training.has_training:
        return RunState.ENDED
    if training.results is not None and training.results.is_finished:
        return RunState.FINISHED
    if training.steps is None or training.max_steps is None:
        return RunState.STOPPED
    return RunState.FINISHED if training.steps >= training.max_steps else RunState.STOPPED


def _find_slowest(checkpoints: Path, learners: Mapping[str, Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return the steps of the slowest model and how many it was to make, by the checkpoints of each."""
    progress = [
        (find_last_step(checkpoints if len(learners) == 1 else checkpoints / model), settings.get("max_steps"))
        for model, settings in learners.items()
    ]
    return min(progress, key=lambda pair: pair[0] or 0, default=(None, None))
