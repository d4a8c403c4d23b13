"""`aevaluate`: a model, or a weight version of a run, on tasks.

`lightningbus.api.blocking` has the same for code without an event loop; ``python -m docs.reference`` writes it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from lightningbus.api.agent_function import runner_fields
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.sessions.options import check_label, default_label, parse_samplings
from lightningbus.api.settings import EvaluateSettings, build_run_settings, runs_directory
from lightningbus.api.tasks import Tasks, save_tasks
from lightningbus.api.training import CONCURRENCY
from lightningbus.api.user_errors import as_user_error
from lightningbus.run.errors import UserError
from lightningbus.run.jobs import evaluate_job
from lightningbus.run.results.results import Results
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.lookup import find_run
from lightningbus.schemas.subjects import DEFAULT_POLICY

NAME = "evaluation"
"""Default name of the run of a model directory."""


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
    """Answer tasks with a model directory, or with a weight version of a run that has ended.

    Args:
        agent: as in `atrain`.
        tasks: as in `atrain`.
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
    samplings = parse_samplings(sampling)
    check_label(label or default_label())
    with as_user_error():
        if run is not None and "name" in settings:
            raise UserError("name: leave it out, because run= names the run")
        runs = runs_directory(settings)
        if run is not None and RunDirectory(runs / run).read_endpoints() is not None:
            raise UserError(f"run {run!r} is up: `lightningbus.connect({run!r}).evaluate(...)` evaluates its versions")
        source = save_tasks(tasks, runs)
        path = os.fspath(model) if model is not None else _find_model(runs, run)
        base = {
            "name": run or NAME,
            "runners": [{**runner_fields(agent, runs), "concurrency": CONCURRENCY}],
            "eval": {"tasks": source},
            **_build_policies(runs, run, path, source),
        }
        checked = build_run_settings(base, settings, EvaluateSettings)
        name = "" if run is None else label or default_label()
        job = evaluate_job.parse_job(checked, samplings, label=name, version=version)
        directory = checked.runs / checked.name
        return EvaluationResult(directory, await evaluate_job.run(checked, job, publishes_model=run is None))


def _build_policies(runs: Path, run: str | None, path: str, source: str | dict[str, Any]) -> dict[str, Any]:
    """Build the sections of nodes and learners: a run's own models, or one model directory."""
    directory = RunDirectory.named(run, runs) if run is not None else None
    recorded = directory.read_learners() if directory is not None else {}
    has_several = len(recorded) > 1
    learners = [
        {
            "model": name, "model_path": fields["model_path"] if has_several else path, "tasks": source, "max_steps": 0,
            **_pick(fields),
        }
        for name, fields in (recorded or {DEFAULT_POLICY: {}}).items()
    ]  # fmt: skip
    nodes = [{key: learner[key] for key in ("model", "model_path")} for learner in learners]
    if not has_several:
        return {"inference": nodes, "learner": learners[0]}
    role_models = next(iter(recorded.values())).get("role_models") or {}
    return {"inference": nodes, "learners": learners, "role_models": role_models}


def _pick(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings of a run's learner that its evaluations have too."""
    timeout = recorded.get("rollout_timeout_seconds")
    return {"reward": recorded.get("reward") or "", **({"rollout_timeout_seconds": timeout} if timeout else {})}


def _find_model(runs: Path, run: str | None) -> str:
    """Find the model that a run began with."""
    if run is None:
        raise UserError("give model='DIRECTORY', or run='NAME' of a run that has ended")
    directory = find_run(run, runs)
    results = Results.read(directory.path) if directory is not None else None
    if results is None:
        raise UserError(f"run {run!r} does not say what it began with: give model='DIRECTORY'")
    return str(results.model_path)
