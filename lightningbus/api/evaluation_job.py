"""`aevaluate`: a model, an endpoint or a weight version of a run on tasks; `aserve` keeps it up for several.

`lightningbus.api.blocking` has the same for code without an event loop; ``python -m docs.reference`` writes it.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from lightningbus.api.agent_function import runner_fields
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.options import with_options
from lightningbus.api.sessions.async_session import AsyncSession, aconnect
from lightningbus.api.sessions.options import EvaluateOptions, check_label, default_label, parse_samplings
from lightningbus.api.settings import (
    EvaluateSettings,
    RunFile,
    build_run_settings,
    read_run_file,
    runs_directory,
)
from lightningbus.api.tasks import Tasks, save_tasks
from lightningbus.api.user_errors import as_user_error
from lightningbus.common.aio import run_in_daemon_thread
from lightningbus.common.kept_open import KeptOpen
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.run.jobs import evaluate_job
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.results.results import Results
from lightningbus.run.run_data.run_data import RunData
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.lookup import find_run
from lightningbus.run.settings.hub_models import check_model_directories
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.sources import to_fields
from lightningbus.schemas.subjects import DEFAULT_POLICY

log = logging.getLogger(__name__)
NAME = "evaluation"
"""Default name of the run of a model directory or an endpoint."""
UNUSED_TASKS = ("none",)
"""Tasks of a learner that publishes a model and makes no step."""
TRAINING_SECTIONS = ("name", "auditor", "optimize", "budget", "trackers")
"""Parts of a run file that an evaluation leaves out."""
ENGINE_FIELDS = (
    *("dtype", "max_model_len", "max_num_seqs", "cpu_threads", "kv_cache_gib", "lora", "tool_parser"),
    *("reasoning_parser", "vllm_command", "vllm_args", "startup_timeout_seconds", "python_executable"),
)
"""Settings of a node that say how its engine computes, and not where it listens."""
ENGINE_SETTINGS = ("inference", "learner", "max_model_len")
"""Settings of what answers in place of an endpoint."""
LIVE_SETTINGS = {"runs", "samples", "pass_reward", "deadline", "concurrency", "runners"}
"""Settings of an evaluation by a run that is up."""


@with_options(EvaluateSettings)
async def aevaluate(
    agent: str | Callable[..., Any] | None = None,
    tasks: Tasks | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    url: str | None = None,
    run: str | None = None,
    version: int | None = None,
    sampling: str | Sequence[str] | None = None,
    label: str | None = None,
    settings: RunFile | None = None,
    **options: Unpack[EvaluateSettings],
) -> EvaluationResult:
    """Answer tasks with a model directory, with an endpoint, or with a weight version of a run.

    An engine is started for a model directory and for a run that has ended. A run that is up answers with its nodes,
    and an endpoint by itself.

    Args:
        agent: as in `atrain`.
        tasks: as in `atrain`.
        model: a Hugging Face model directory; with ``url`` the model's name there. With ``run`` it may be left out.
        url: an OpenAI-compatible endpoint, such as a vLLM server: ``http://127.0.0.1:8000/v1``.
        run: name of a run. For one that has ended its processes start again, without the learner, and its store keeps
            the rollouts. For one that is up a runner is started for the agent.
        version: weight version of ``run``; default: the newest. The bus keeps the last few.
        sampling: ``greedy``, ``sampled`` or both; default: as ``settings``, else both.
        label: with ``run``, name under which its store keeps these rollouts apart; default: date and time. Rollouts of
            the same agent, tasks and settings on record count, and other ones refuse the label.
        settings: a run file as in `atrain`, of which the name is left out. Agent, tasks and model may be left out where
            it has them. They win over it. Not for a run that is up.
        options: the common settings by name, all others in the section of a run file.

    Raises:
        UserError: something the user can put right, in one sentence.
    """
    chosen = parse_samplings(sampling) if sampling is not None else None
    with as_user_error():
        file = _read_file(settings)
        runs = _check_source(model, url, run, options, file)
        check_label(label or default_label(), RunDirectory(runs / run) if run is not None else None)
        if run is not None and RunDirectory(runs / run).read_endpoints() is not None:
            if settings is not None or agent is None or tasks is None:
                raise UserError(f"run {run!r} is up and has its own settings: give agent and tasks, and no run file")
            live = _live_options(run, options)
            live["agent"], live["sampling"] = agent, chosen or tuple(SAMPLINGS)
            if version is not None:
                live["version"] = version
            if label is not None:
                live["label"] = label
            async with await aconnect(run, runs=runs) as session:
                return await session.evaluate(tasks, **live)
        if tasks is None:
            tasks = _find_tasks(file.get("eval") or {})
        checked = _build_settings(agent, tasks, model, url, run, options, file)
        assert checked.eval is not None
        name = "" if run is None else label or default_label()
        job = evaluate_job.parse_job(checked, chosen or checked.eval.sampling, label=name, version=version)
        directory = checked.runs / checked.name
        return EvaluationResult(directory, await evaluate_job.run(checked, job, publishes_model=run is None))


@with_options(EvaluateSettings)
async def aserve(
    agent: str | Callable[..., Any],
    *,
    model: str | os.PathLike[str] | None = None,
    url: str | None = None,
    run: str | None = None,
    **settings: Unpack[EvaluateSettings],
) -> AsyncSession:
    """Start what `aevaluate` starts, once for any number of evaluations: `AsyncSession.evaluate` starts nothing more.

    Its processes end with the session. Nodes serve the newest version.

    Args:
        agent: as in `atrain`.
        model: as in `aevaluate`.
        url: as in `aevaluate`.
        run: name of a run that has ended.
        settings: as in `aevaluate`.

    Raises:
        UserError: something the user can put right, in one sentence.
    """
    with as_user_error():
        runs = _check_source(model, url, run, settings, {})
        if run is not None and RunDirectory(runs / run).read_endpoints() is not None:
            raise UserError(f"run {run!r} is up already: `lightningbus.aconnect({run!r})` evaluates its versions")
        checked = _build_settings(agent, None, model, url, run, settings, {})
        processes = KeptOpen(evaluate_job.served(checked, publishes_model=run is None), _wait_for_failure)
        try:
            directory = (await run_in_daemon_thread(processes.wait)).directory
        except BaseException:
            processes.close()
            raise
        return AsyncSession(directory, directory.run_id, None, RunData(directory), runs, processes)


def _find_tasks(section: Mapping[str, Any]) -> Any:
    """Return ``tasks`` of the section ``eval`` of a run file, and warn of its suites; `UserError`: it has no tasks."""
    names = ", ".join(str(suite.get("name")) for suite in section.get("suites") or () if isinstance(suite, Mapping))
    advice = "for a suite, give its agent and its tasks, as by `lightningbus evaluate AGENT TASKS -c RUN_FILE`"
    if section.get("tasks") is None:
        suites = f"; those of eval.suites ({names}) are for training: {advice}" if names else ""
        raise UserError(f"tasks: give the tasks to answer, or a run file with eval.tasks{suites}")
    if names:
        log.warning("only eval.tasks is evaluated, without eval.suites (%s): %s", names, advice)
    return section["tasks"]


async def _wait_for_failure(stack: LocalStack) -> None:
    await stack.supervisor.wait_for_failure()


def _check_source(
    model: str | os.PathLike[str] | None,
    url: str | None,
    run: str | None,
    settings: EvaluateSettings,
    file: Mapping[str, Any],
) -> Path:
    """Return the directory of runs; raises `UserError` unless the arguments name what answers, once."""
    if run is not None and "name" in settings:
        raise UserError("name: leave it out, because run= names the run")
    if url is not None and run is not None:
        raise UserError("give url= or run=, not both")
    if url is not None and model is None:
        raise UserError("model: give the name by which the endpoint of url= knows the model")
    for name in ENGINE_SETTINGS if url is not None else ():
        if name in settings:
            raise UserError(f"{name}: leave it out, because no engine is started for url=")
    return runs_directory(settings, file)


def _read_file(settings: RunFile | None) -> dict[str, Any]:
    """Read the sections of a run file that an evaluation has too."""
    return {name: value for name, value in read_run_file(settings).items() if name not in TRAINING_SECTIONS}


def _find_file_model(file: Mapping[str, Any]) -> str | None:
    """Find the model directory that a run file starts from: its learner's, else that of its first node. Pure."""
    sections = [*_listed(file.get("learner")), *_listed(file.get("learners")), *_listed(file.get("inference"))]
    return next((str(each["model_path"]) for each in sections if "model_path" in each), None)


def _listed(section: Any) -> list[Any]:
    """Return a section's entries, whether a run file has one or several. Pure."""
    return [each for each in (section if isinstance(section, list) else [section]) if isinstance(each, Mapping)]


def _live_options(run: str, settings: EvaluateSettings) -> EvaluateOptions:
    """Return the settings as options of a session's evaluation; raises `UserError` for any other. Pure."""
    runner = to_fields(settings.get("runners", {}))
    for name in settings.keys() - LIVE_SETTINGS:
        raise UserError(f"{name}: leave it out, because run {run!r} is up and has its own")
    if not isinstance(runner, Mapping):
        raise UserError(f"runners: give the settings of one runner, because run {run!r} is up")
    if "concurrency" in settings:
        runner = {"concurrency": settings["concurrency"], **runner}
    options = EvaluateOptions(runner=runner)
    if "samples" in settings:
        options["samples"] = settings["samples"]
    if "pass_reward" in settings:
        options["pass_reward"] = settings["pass_reward"]
    if "deadline" in settings:
        options["deadline"] = settings["deadline"]
    return options


def _build_settings(
    agent: str | Callable[..., Any] | None,
    tasks: Tasks | None,
    model: str | os.PathLike[str] | None,
    url: str | None,
    run: str | None,
    settings: EvaluateSettings,
    file: Mapping[str, Any],
) -> RunSettings:
    """Build the settings of the processes to start; without ``tasks`` there is no section `eval`."""
    runs = runs_directory(settings, file)
    source = save_tasks(UNUSED_TASKS if tasks is None else tasks, runs)
    path = os.fspath(model) if model is not None else _find_file_model(file) if run is None else None
    path = path or _find_model(runs, run)
    if agent is None and not file.get("runners") and not settings.get("runners"):
        raise UserError("agent: give 'module:function', or a run file with runners")
    runner: dict[str, Any] = dict(runner_fields(agent, runs)) if agent is not None else {}
    if url is not None:
        runner["endpoints"] = {DEFAULT_POLICY: {"url": url, "model": path}}
    base = {
        "name": run or NAME,
        "runners": runner if file.get("runners") else [runner],
        **({"eval": {"tasks": source}} if tasks is not None else {}),
        **(
            _build_policies(runs, run, path, source)
            if url is None and not (file.get("learners") and run is None)
            else {}
        ),
    }
    kept = {name: value for name, value in file.items() if url is None or name not in ENGINE_SETTINGS}
    checked = build_run_settings(base, settings, EvaluateSettings, kept)
    if model is not None and url is None:
        check_model_directories(checked, dict.fromkeys(("learner.model_path", "inference.model_path"), "model"))
    return checked


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
    engines = directory.read_nodes() if directory is not None else {}
    nodes = [
        {"model": learner["model"], "model_path": learner["model_path"], **_pick_engine(engines, learner["model"])}
        for learner in learners
    ]
    if not has_several:
        return {"inference": nodes, "learner": learners[0]}
    role_models = next(iter(recorded.values())).get("role_models") or {}
    return {"inference": nodes, "learners": learners, "role_models": role_models}


def _pick(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings of a run's learner that its evaluations have too."""
    timeout = recorded.get("rollout_timeout_seconds")
    return {"reward": recorded.get("reward") or "", **({"rollout_timeout_seconds": timeout} if timeout else {})}


def _pick_engine(nodes: Mapping[str, Mapping[str, Any]], model: str) -> dict[str, Any]:
    """Pick the settings by which a run's nodes of a model computed, so that an evaluation computes in the same way."""
    recorded = nodes.get(model, {})
    return {name: recorded[name] for name in ENGINE_FIELDS if recorded.get(name) is not None}


def _find_model(runs: Path, run: str | None) -> str:
    """Find the model that a run began with."""
    if run is None:
        raise UserError("give model='DIRECTORY', run='NAME', or url='http://HOST:PORT/v1' of an endpoint")
    directory = find_run(run, runs)
    results = Results.read(directory.path) if directory is not None else None
    if results is None:
        raise UserError(f"run {run!r} does not say what it began with: give model='DIRECTORY'")
    return str(results.model_path)
