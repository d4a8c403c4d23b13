"""The runs of a directory at a glance: state, progress, rewards, disk space and labels, from their files alone."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.run_data.training_record import choose_state, read_training
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.disk_usage import measure_disk_bytes
from lightningbus.run.run_directory.labels import Labels, read_labels
from lightningbus.run.run_directory.lookup import find_missing_parts, list_run_names
from lightningbus.run.run_directory.occupancy import is_up
from lightningbus.run.run_directory.run_times import find_started_at
from lightningbus.store.ui.run_state import RunState


@dataclass(frozen=True, slots=True)
class RunOverview:
    """A run at a glance; None: not known, as for a run without a training job."""

    name: str
    state: RunState
    """State by the files: running, finished, stopped before its last step, or ended without a training on record."""
    started_at: datetime
    """Time of the first start, in UTC."""
    disk_bytes: int
    tags: tuple[str, ...]
    note: str
    is_archived: bool
    problem: str = ""
    """Why a file of it cannot be read; empty: all can."""
    seconds: float | None = None
    """Wall-clock seconds of all starts."""
    steps: int | None = None
    """Training steps made; without a training job, those of the last checkpoint."""
    max_steps: int | None = None
    reward: float | None = None
    """Mean reward of the last training step."""
    heldout: float | None = None
    """Mean held-out reward of the version evaluated last, greedy if that was asked for."""


def list_runs(runs: Path = RUNS, tag: str | None = None, archived: bool = False) -> list[RunOverview]:
    """Describe the runs of a directory, the one that was started last first.

    ``tag``: those that have it. ``archived``: those that are archived too. A run that is deleted meanwhile is left out.
    """
    chosen = []
    for name in list_run_names(runs):
        with suppress(FileNotFoundError):
            labels, problem = _read_labels(runs / name)
            if is_listed(labels, tag, archived):
                chosen.append(_describe(RunDirectory(runs / name), labels, problem))
    return sorted(chosen, key=lambda run: (-run.started_at.timestamp(), run.name))


def is_listed(labels: Labels, tag: str | None, archived: bool) -> bool:
    """Return whether a run with these labels is to be listed. Pure."""
    return (archived or not labels.is_archived) and (tag is None or tag in labels.tags)


def find_last_heldout(evaluations: Iterable[Evaluation]) -> float | None:
    """Return the mean reward of the version that was evaluated last, greedy if it has that. Pure."""
    means: dict[str, float] = {}
    for each in evaluations:
        means[each.label] = each.mean_reward
    return means.get("greedy", next(reversed(means.values()), None))


def _describe(run: RunDirectory, labels: Labels, problem: str) -> RunOverview:
    training = read_training(run)
    results = training.results
    return RunOverview(
        name=run.path.name,
        state=choose_state(is_up(run), training),
        started_at=find_started_at(run.path),
        disk_bytes=measure_disk_bytes(run.path),
        tags=labels.tags,
        note=labels.note,
        is_archived=labels.is_archived,
        problem=problem or training.problem or _describe_missing(run),
        seconds=None if results is None else round(results.seconds, 1),
        steps=training.steps,
        max_steps=training.max_steps,
        reward=None if results is None else results.reward,
        heldout=None if results is None else find_last_heldout(results.evaluations),
    )


def _describe_missing(run: RunDirectory) -> str:
    missing = find_missing_parts(run.path)
    return f"{run.path} is not whole: it lacks {', '.join(missing)}" if missing else ""


def _read_labels(directory: Path) -> tuple[Labels, str]:
    try:
        return read_labels(directory), ""
    except UserError as error:
        return Labels(), str(error)
