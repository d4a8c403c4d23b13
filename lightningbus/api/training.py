"""`atrain`: a training job from Python, with this process as the supervisor of its processes.

`lightningbus.api.blocking` has the same for code without an event loop; ``python -m docs.reference`` writes it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from lightningbus.api.agent_function import CONCURRENCY, runner_fields
from lightningbus.api.settings import TrainSettings, build_run_settings, runs_directory
from lightningbus.api.tasks import Tasks, save_tasks
from lightningbus.api.user_errors import as_user_error, require_package
from lightningbus.run.jobs import train_job
from lightningbus.run.jobs.callbacks import Callback
from lightningbus.run.preflight import job_checks
from lightningbus.run.results.train_result import TrainResult
from lightningbus.run.settings.run_file import RunSettings


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, or the stop button of a notebook, ended a run; everything it started has ended, nothing is lost."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that Jupyter shows instead of a traceback."""
        return [str(self)]


@contextmanager
def as_run_interrupted(settings: Mapping[str, Any]) -> Iterator[None]:
    """Raise `RunInterrupted` for Ctrl-C inside the block, with the name of the run that ``settings`` are of."""
    try:
        yield
    except KeyboardInterrupt:
        name = settings.get("name", RunSettings.model_fields["name"].default)
        raise RunInterrupted(
            f"run {name!r} is stopped and its data is kept: the same call with resume=True goes on"
        ) from None


async def atrain(
    agent: str | Callable[..., Any],
    model: str | os.PathLike[str],
    tasks: Tasks,
    heldout: Tasks,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **settings: Unpack[TrainSettings],
) -> TrainResult:
    """Train an agent to the end, as ``lightningbus train`` does: held-out reward before, training, and after.

    Args:
        agent: ``"module:function"`` in the current directory, or a function. A function of a notebook runs in a process
            of its own, with the functions and constants it uses.
        model: a Hugging Face model directory.
        tasks: tasks to train on: a path, a list, a DataFrame or a dataset, see `Tasks`.
        heldout: tasks the model is never trained on.
        resume: go on where the run of this name was stopped.
        callbacks: objects that get each step, evaluation and alert, and may end training, see `Callback`.
        settings: the common settings by name (`max_steps`, `lr`, ...), all others in the section of a run file
            (`learner={...}`).

    Returns:
        Figures, evaluations and the run's directory.

    Raises:
        UserError: something the user can put right, in one sentence.
        CancelledError: the run was stopped; its data is kept, and the same call with resume=True goes on.
    """
    require_package("matplotlib", "notebook")  # the picture comes last, and is not to be what fails
    with as_user_error():
        runs = runs_directory(settings)
        base = {
            "inference": [{"model_path": os.fspath(model)}],
            "runners": [{**runner_fields(agent, runs), "concurrency": CONCURRENCY}],
            "learner": {"model_path": os.fspath(model), "tasks": save_tasks(tasks, runs)},
            "eval": {"tasks": save_tasks(heldout, runs)},
        }
        checked = build_run_settings(base, settings, TrainSettings)
        job = job_checks.parse_job(checked, "settings")
        return await train_job.run(checked, job, resume=resume, callbacks=callbacks)
