"""Keyword arguments of a session's methods: their types, and what they become."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import (
    ANSWERING_SETTINGS,
    ROLLOUT_SECONDS,
    SAMPLINGS,
    EvaluationJob,
    RolloutRequest,
    digest_conditions,
)
from lightningbus.run.results.run_record import list_suites
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.policy_options import NAME
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.tasks.task_loading import TaskInput

DEADLINE_SECONDS = 600.0
"""Default deadline of an evaluation."""


class EvaluateOptions(TypedDict, total=False):
    """Keyword arguments of `Session.evaluate`."""

    version: int | Mapping[str, int]
    """Weight version of the model that agents call by name, or versions by model; default: the newest of each.

    The bus keeps the last few.
    """
    sampling: str | Sequence[str]
    """``greedy``, ``sampled`` or both; default: both."""
    label: str
    """The evaluations are named ``LABEL-greedy`` and ``LABEL-sampled``; default: date and time."""
    samples: int
    """Sampled answers to each task."""
    pass_reward: float
    """Reward from which on an answer has passed, for pass@k; default: 1."""
    agent: str | Callable[..., Any]
    """Name of the agent of the run that answers; or a function, or ``module:function``: a runner is started for it, and
    ends with the evaluation."""
    runner: RunnerSettings | Mapping[str, Any]
    """Settings of that runner, such as `concurrency`."""
    model: str
    """The model that agents call by name; default: the run's."""
    role_models: Mapping[str, str]
    """Models that answer for some roles of the agent; default: the run's."""
    deadline: float
    """Seconds without the end of a rollout, beyond its timeout, after which a sampling is given up; also how long an
    evaluation of others is waited for."""
    rollout_timeout: float
    """Seconds a rollout may take, which then counts as 0; default: the learner's `rollout_timeout_seconds`."""


def build_evaluation_job(
    directory: RunDirectory, inputs: Sequence[TaskInput], options: Mapping[str, Any]
) -> EvaluationJob:
    """Build the evaluation of tasks; raises `UserError` for an option that is not known or has a wrong value."""
    check_options(options, EvaluateOptions)
    learners = directory.read_learners()
    main = options.get("model") or _find_model(directory, learners)
    learner = learners.get(main, {})
    ignored = ("version", "sampling", "label", "model", "runner", *(["agent"] if has_own_runner(options) else []))
    fields: dict[str, Any] = {
        "samples": 2, "deadline": DEADLINE_SECONDS, "role_models": learner.get("role_models") or {},
        "rollout_timeout": learner.get("rollout_timeout_seconds") or ROLLOUT_SECONDS,
        **{name: value for name, value in options.items() if name not in ignored},
    }  # fmt: skip
    request = RolloutRequest(
        run=directory.run_id,
        model=main,
        evaluation=options.get("label", default_label()),
        reward=learner.get("reward") or "",
        is_reward_of_all=len(learners) < 2,
        id_parts=(secrets.token_hex(4) if has_own_runner(options) else _digest(directory, fields, inputs),),
        **fields,
    )
    answers_elsewhere = not learner and main in directory.read_settings("runner-0").get("endpoints", ())
    models = [] if answers_elsewhere else list(learners) if learner else [main]
    versions = _versions_of(models, main, options.get("version"))
    samplings = parse_samplings(options.get("sampling", tuple(SAMPLINGS)))
    check_label(request.evaluation, directory)
    if request.samples < 1:
        raise UserError(f"samples: {request.samples} is less than 1")
    return EvaluationJob(request, inputs, samplings, versions)


def _digest(directory: RunDirectory, fields: Mapping[str, Any], inputs: Sequence[TaskInput]) -> str:
    """Return a digest of agent, tasks and settings: an evaluation goes on with rollouts of these alone.

    It goes on with a longer deadline and another threshold, too. The code of an agent that a session starts may have
    changed since, so its rollouts are never those of before.
    """
    runner = directory.read_settings("runner-0")
    conditions = {name: value for name, value in fields.items() if name not in ("deadline", "pass_reward", "samples")}
    agent = {name: runner.get(name) for name in ANSWERING_SETTINGS}
    return digest_conditions({"agents": [agent], **conditions}, inputs)


def has_own_runner(options: Mapping[str, Any]) -> bool:
    """Return whether the agent is none of the run's, but ``module:function`` or a function."""
    agent = options.get("agent", "")
    return not isinstance(agent, str) or ":" in agent


def parse_samplings(sampling: str | Sequence[str]) -> list[str]:
    """Return the samplings; raises `UserError` for one that is not known, and where there is none."""
    samplings = [sampling] if isinstance(sampling, str) else list(sampling)
    for name in samplings or [""]:
        if name not in SAMPLINGS:
            raise UserError(f"sampling: {name!r} is none of {', '.join(SAMPLINGS)}")
    return samplings


def default_label() -> str:
    """Return the label of an evaluation that is given none: date and time, to the millisecond."""
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]


def check_label(label: str, directory: RunDirectory | None = None) -> None:
    """Raise `UserError` unless a label can be part of an evaluation's name, and of no other evaluation of the run.

    A suite of its training job has the ids of an evaluation with the suite's name.
    """
    if not NAME.fullmatch(f"{label}-{max(SAMPLINGS, key=len)}"):
        raise UserError(f"label: {label!r} is not a name: letters, digits, _ and -, at most 56")
    if directory is not None and label in list_suites(directory.path):
        raise UserError(
            f"label: {label!r} is a suite of run {directory.path.name!r}: its rewards would be averaged with these, so "
            "give another one"
        )


def _find_model(directory: RunDirectory, learners: Mapping[str, Any]) -> str:
    """Find the model that agents of the run call by name."""
    return next(iter(learners), None) or str(directory.read_settings("inference-0").get("model") or DEFAULT_POLICY)


def _versions_of(models: Sequence[str], main: str, version: int | Mapping[str, int] | None) -> dict[str, int | None]:
    """Map each model to its version, None: the newest; raises `UserError` for a model that the run does not train."""
    if not models and version is None:
        return {}
    named: Mapping[str, int | None] = version if isinstance(version, Mapping) else {main: version}
    if not models:
        raise UserError(f"version: an endpoint answers for model {main!r}, which has no versions")
    for model in named:
        if model not in models:
            raise UserError(f"version: the run trains no model {model!r}; it trains {', '.join(models)}")
    return {model: named.get(model) for model in models}


def check_options(options: Mapping[str, Any], kind: type) -> None:
    """Raise `UserError` for an option that is none of a kind's."""
    for name in options.keys() - kind.__annotations__.keys():
        raise UserError(f"{name}: no such option; {suggest_name(name, kind.__annotations__)}".rstrip("; "))
