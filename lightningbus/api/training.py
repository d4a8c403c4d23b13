"""`atrain`: a training job from Python, with this process as the supervisor of its processes.

`lightningbus.api.blocking` has the same for code without an event loop; ``python -m docs.reference`` writes it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from lightningbus.api.agent_function import runner_fields
from lightningbus.api.options import with_options
from lightningbus.api.settings import (
    RunFile,
    TrainSettings,
    build_run_settings,
    read_run_file,
    runs_directory,
)
from lightningbus.api.tasks import Tasks, save_evaluation_tasks, save_tasks
from lightningbus.api.train_result import TrainResult
from lightningbus.api.user_errors import as_user_error, require_package
from lightningbus.run.errors import UserError
from lightningbus.run.jobs import train_job
from lightningbus.run.jobs.callbacks import Callback
from lightningbus.run.preflight import job_checks
from lightningbus.run.results.run_record import identify_record
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.lookup import no_such_run
from lightningbus.run.run_directory.recorded_settings import (
    drop_replaced_budget,
    has_recorded_settings,
    read_recorded_settings,
)
from lightningbus.run.settings.hub_models import check_model_directories
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.sources import to_fields

ARGUMENTS = {
    "runners": "agent",
    "runners.entrypoint": "agent",
    "learner.model_path": "model",
    "inference.model_path": "model",
    "learner.tasks": "tasks",
    "eval.tasks": "heldout",
}
"""Arguments of `atrain` by the field of a run file that each gives."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, or the stop button of a notebook, ended a run; everything it started has ended, nothing is lost."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that Jupyter shows instead of a traceback."""
        return [str(self)]


@contextmanager
def as_run_interrupted(
    options: Mapping[str, Any], settings: RunFile | None = None, resume: bool | str = False
) -> Iterator[None]:
    """Raise `RunInterrupted` for Ctrl-C inside the block, with the name of the run; the arguments are `atrain`'s."""
    name = resume if isinstance(resume, str) else str(options.get("name") or _read_name(settings))
    earlier = _identify_run(options, settings, name)
    try:
        yield
    except KeyboardInterrupt:
        if not resume and _identify_run(options, settings, name) == earlier:
            raise RunInterrupted(f"run {name!r} is stopped: nothing had started, and no run was changed") from None
        raise RunInterrupted(
            f"run {name!r} is stopped and its data is kept: the same call with resume=True goes on"
        ) from None


def _identify_run(options: Mapping[str, Any], settings: RunFile | None, name: str) -> tuple[int, int] | None:
    """Return what tells the run of a name from another one; None without a run, or where settings are wrong."""
    try:
        return identify_record(runs_directory(options, _read_fields(settings)) / name)
    except (TypeError, ValueError):  # no path, which the training itself reports
        return None


def _read_name(settings: RunFile | None) -> str:
    """Read the name of a run from its run file; the default where there is none."""
    return str(_read_fields(settings).get("name", RunSettings.model_fields["name"].default))


def _read_fields(settings: RunFile | None) -> Mapping[str, Any]:
    """Read the fields of a run file; none where it cannot be read, which the training itself reports."""
    try:
        return read_run_file(settings)
    except UserError:
        return {}


@with_options(TrainSettings)
async def atrain(
    agent: str | Callable[..., Any] | None = None,
    model: str | os.PathLike[str] | None = None,
    tasks: Tasks | None = None,
    heldout: Tasks | None = None,
    *,
    settings: RunFile | None = None,
    resume: bool | str = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[TrainSettings],
) -> TrainResult:
    """Train an agent to the end, as ``lightningbus train`` does: held-out reward before, training, and after.

    Args:
        agent: ``"module:function"`` in the current directory, or a function. A function of a notebook runs in a process
            of its own, with the functions and constants it uses.
        model: a Hugging Face model directory, or a name on the Hub whose model is in the Hub's cache on this machine.
        tasks: tasks to train on: a path, a list, a DataFrame or a dataset, see `Tasks`.
        heldout: tasks the model is never trained on; none: no evaluation, so no best version.
        settings: a run file: `lightningbus.settings.RunSettings`, its fields, or its path. The first four arguments may
            be left out where it, or ``options``, has them. They win over it.
        resume: go on where the run of this name was stopped, by the settings of its start; what is given here wins
            over them, but model, tasks and seed must stay. A string is the name: ``resume="small"``. Without it, an
            earlier run of the name is moved aside: its directory and name get the time at their end.
        callbacks: objects that get each step, evaluation and alert, and may end training, see `Callback`.
        options: the common settings by name (`max_steps`, `lr`, ...), all others in the section of a run file: a
            mapping, or an object (`learner=LearnerSettings(...)`). They win over all others.

    Returns:
        Figures, evaluations and the run's directory.

    Raises:
        UserError: something the user can put right, in one sentence.
        CancelledError: the run was stopped; its data is kept, and the same call with resume=True goes on.
    """
    require_package("matplotlib", "notebook")  # the picture comes last, and is not to be what fails
    with as_user_error():
        check_callbacks(callbacks)
        file = read_run_file(settings)
        runs = runs_directory(options, file)
        if isinstance(resume, str):
            options["name"] = _check_name(resume, options)
        recorded = _read_recorded(runs, options, settings, must_exist=isinstance(resume, str)) if resume else {}
        recorded = drop_replaced_budget(recorded, {**file, **options})
        if model is None and settings is None:  # the nodes serve what the learner starts from
            model = to_fields(options.get("learner", {})).get("model_path")
        if "eval" in options:
            options["eval"] = save_evaluation_tasks(options["eval"], runs)
        base = _build_base(agent, model, tasks, heldout, runs)
        if settings is None and not recorded:  # there is a runner, which lacks an agent
            base.setdefault("runners", {})
        present = {"agent": agent, "model": model, "tasks": tasks, "heldout": heldout}
        names = {
            field: name
            for field, name in ARGUMENTS.items()
            if present[name] is not None or (settings is None and field.partition(".")[0] not in options)
        }
        checked = build_run_settings(base, options, TrainSettings, file, recorded, names)
        _check_tasks(checked)
        job = job_checks.parse_job(checked, "settings")
        if not resume:  # else whether there is something to resume comes first
            check_model_directories(checked, names)
        done = await train_job.run(checked, job, resume=bool(resume), callbacks=callbacks)
    return TrainResult(done.directory, done.figures, done.evaluations, identify_record(done.directory))


def _check_name(resume: str, options: Mapping[str, Any]) -> str:
    """Return the name of the run to resume; raises `UserError` where another is present beside it."""
    if options.get("name", resume) != resume:
        raise UserError(f"resume={resume!r} names the run: leave out name={options['name']!r}")
    return resume


def _read_recorded(
    runs: Path, options: Mapping[str, Any], settings: RunFile | None, *, must_exist: bool
) -> dict[str, Any]:
    """Read the settings of the start of a run that is resumed; empty where an earlier release started it."""
    run = RunDirectory(runs / str(options.get("name") or _read_name(settings)))
    if must_exist and not run.path.is_dir():
        raise no_such_run(run.path.name, runs)
    return read_recorded_settings(run) if must_exist or has_recorded_settings(run) else {}


def _check_tasks(settings: RunSettings) -> None:
    """Raise `UserError` that names the argument, unless there are tasks to train on."""
    if any(learner.tasks is None for learner in settings.all_learners):
        raise UserError("tasks: give the tasks to train on, or a run file with learner.tasks")


def _build_base(
    agent: str | Callable[..., Any] | None,
    model: str | os.PathLike[str] | None,
    tasks: Tasks | None,
    heldout: Tasks | None,
    runs: Path,
) -> dict[str, dict[str, Any]]:
    """Build the sections that the arguments of `atrain` are about."""
    base: dict[str, dict[str, Any]] = {}
    if model is not None:
        base["inference"], base["learner"] = ({"model_path": os.fspath(model)} for _ in range(2))
    if agent is not None:
        base["runners"] = runner_fields(agent, runs)
    if tasks is not None:
        base.setdefault("learner", {})["tasks"] = save_tasks(tasks, runs)
    if heldout is not None:
        base["eval"] = {"tasks": save_tasks(heldout, runs, "heldout")}
    return base


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise `UserError` unless this is a sequence of `Callback` objects."""
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks: give a list, such as [{type(callbacks).__name__}(...)]")
    for each in callbacks:
        if isinstance(each, type):
            raise UserError(f"callbacks: give an object, {each.__name__}(), in place of its class")
        if not isinstance(each, Callback):
            raise UserError(f"callbacks: {each!r} is none: write a subclass of lightningbus.Callback")
