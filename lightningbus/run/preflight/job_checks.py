"""Checks that a training job can run: everything is loaded but the weights, and the agent runs once."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightningbus.bus.streams.sizes import DEFAULT_MIB, MAX_ACK_PENDING, MIB
from lightningbus.bus.streams.specs import MAX_MESSAGES
from lightningbus.learner.rollouts.capacity import Capacity, find_shortage
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.computation_check import check_computation
from lightningbus.run.preflight.judge_checks import check_judges
from lightningbus.run.preflight.learner_checks import check_formats, check_functions, check_learner
from lightningbus.run.preflight.memory_check import Target, check_memory
from lightningbus.run.preflight.model_checks import check_configuration, check_model, find_weights
from lightningbus.run.preflight.port_checks import check_ports
from lightningbus.run.preflight.server_checks import check_bus_program, check_servers
from lightningbus.run.preflight.setting_conflicts import find_differences, find_inconsistencies, find_oddities
from lightningbus.run.preflight.trial_rollout import TrialTask, WantedReward, try_tasks
from lightningbus.run.processes.stack import complete_learner_settings
from lightningbus.run.results.prompt_files import read_prompt_text
from lightningbus.run.run_directory.directory import INPUTS
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import RunSettings, describe_problems
from lightningbus.runners.protocol.prompts import PromptChoice
from lightningbus.schemas.base import Mode
from lightningbus.schemas.subjects import TRAIN_ROLLOUTS
from lightningbus.tasks.task_loading import TaskInput, load_tasks
from lightningbus.tasks.task_source import TaskSource

VERSIONS_AHEAD = 3
"""Weight versions needed beyond `max_staleness`: the one being evaluated, its successor, and the one being published.
"""


MAX_TRIALS = 2
"""Tasks on which an agent is tried, where it fails the first."""


@dataclass(frozen=True, slots=True)
class TrainJob:
    """Learners and evaluation of a training job, validated together; without held-out tasks the latter has no set."""

    learners: tuple[LearnerSettings, ...]
    """Settings of all learners; the first one trains the model that agents call by name."""
    eval: EvalSettings

    @property
    def learner(self) -> LearnerSettings:
        """First learner; all learners dispatch the same tasks."""
        return self.learners[0]


def parse_job(settings: RunSettings, source: str) -> TrainJob:
    """Return the training job of a run file; raises `UserError` naming everything missing or inconsistent in it."""
    lacking = [name for name in ("store", "inference", "runners") if not getattr(settings, name)]
    lacking += [] if settings.all_learners else ["learner"]
    if lacking:
        raise UserError(f"{source}: a training job needs {', '.join(lacking)} too")
    learners = tuple(complete_learner_settings(settings, settings.runs / settings.name).values())
    if any(learner.tasks is None for learner in learners):
        raise UserError(f"{source}: learner.tasks: a training job has tasks to train on")
    heldout = settings.eval or EvalSettings()
    problems = [problem for learner in learners for problem in find_inconsistencies(settings, learner, heldout)]
    if problems := list(dict.fromkeys([*problems, *find_differences(learners)])):
        raise UserError(describe_problems(source, problems))
    has_turns = heldout.has_turns or settings.optimizes_in_turns
    return TrainJob(tuple(_keep_versions_ahead(each) if has_turns else each for each in learners), heldout)


def _keep_versions_ahead(learner: LearnerSettings) -> LearnerSettings:
    """Let the learner keep as many weight versions as it can be ahead during an evaluation or prompt round."""
    num_kept = max(learner.keep_weight_versions, learner.max_staleness + VERSIONS_AHEAD)
    return learner.model_copy(update={"keep_weight_versions": num_kept})


def run_checks(
    settings: RunSettings, job: TrainJob, target: Target, *, loads_models: bool = False, starts_engine: bool = False
) -> Iterator[str]:
    """Yield a sentence for each thing that is in order; raises `UserError` at the first that is not.

    ``loads_models``: load the learners' models too, which they do again as they start. ``starts_engine``: start vLLM
    with each of those, too.
    """
    assert job.learner.tasks is not None
    is_here = target.gpu_memory_gib is None
    if is_here:
        check_bus_program(settings)
        check_ports(settings)
    yield from check_servers(settings)
    if is_here:
        yield from check_judges(settings)
    trained_inputs: set[str] = set()
    for source in job.learner.task_sources:
        tasks = load_tasks(source)
        if job.eval.sets:
            trained_inputs.update(map(_serialize_input, tasks))
        yield f"{_name_tasks(source, 'tasks')}: {len(tasks)} tasks"
    for held_out in job.eval.sets:
        tasks = load_tasks(held_out.task_source)
        name = _name_tasks(held_out.task_source, getattr(held_out, "name", "heldout"))
        yield f"{name}: {len(tasks)} tasks"
        if repeated := [task.id for task in tasks if _serialize_input(task) in trained_inputs]:
            yield f"warning: {len(repeated)} of the {len(tasks)} tasks of {name} are trained on too, as {repeated[0]!r}"
    if not job.eval.sets:
        yield "warning: no held-out tasks (eval.tasks): only rewards of training are known, and no version is the best"
    for learner in job.learners:
        yield _check_sizes(settings, learner)
        yield from (f"warning: {oddity}" for oddity in find_oddities(settings, learner))
        check_functions(learner)
    trained = [learner.model_path for learner in job.learners]
    for path in dict.fromkeys([*trained, *(node.model_path for node in settings.inference)]):
        nodes = [node for node in settings.inference if node.model_path == path]
        learners = [learner for learner in job.learners if learner.model_path == path]
        yield from check_model(path, nodes, learners, is_here=is_here)
    for learner in job.learners:
        yield from check_learner(learner, target)
        check_formats(learner, settings.inference, target)
        yield from check_memory(learner, settings.inference, target)
        if loads_models:
            yield from check_computation(learner, target, settings.inference if starts_engine else None)
    for runner in {runner.model_dump_json(): runner for runner in settings.runners}.values():
        trials = [replace(each, is_here=is_here) for each in list_trials(settings, job, runner.agent_name)]
        yield from asyncio.run(try_tasks(runner, trials))


def _name_tasks(source: Path | TaskSource, name: str) -> str:
    """Return a source as it was given: rows of a notebook, which are kept in a file, by their argument or suite."""
    return name if INPUTS in Path(str(source)).parts else str(source)


def _serialize_input(task: TaskInput) -> str:
    """Return the input of a task as a text, the same for equal inputs."""
    return json.dumps(task.input, sort_keys=True, default=str)


def check_alone(learner: LearnerSettings, target: Target) -> Iterator[str]:
    """Check a learner that is started by itself, as `run_checks` does; for other machines no weights are needed."""
    if target.gpu_memory_gib is not None and not find_weights(learner.model_path):
        yield from check_configuration(learner.model_path, learner)
    else:
        yield from check_model(learner.model_path, (), [learner])
    check_functions(learner)
    yield from check_learner(learner, target)
    yield from check_memory(learner, (), target)
    yield from check_computation(learner, target)


def _check_sizes(settings: RunSettings, learner: LearnerSettings) -> str:
    """Check that the embedded bus can hold the learner's rollouts; return a sentence, or raise `UserError`."""
    sizes = settings.bus.streams
    bound = sizes.bytes_of(TRAIN_ROLLOUTS) or DEFAULT_MIB[TRAIN_ROLLOUTS] * MIB
    short = find_shortage(learner, Capacity(bound, MAX_MESSAGES, sizes.max_ack_pending or MAX_ACK_PENDING))
    if short.step:
        raise UserError(short.step)
    return f"{TRAIN_ROLLOUTS}: {short.interval or f'{bound // MIB:,} MiB hold the steps between two checkpoints'}"


def list_trials(settings: RunSettings, job: TrainJob, agent: str) -> list[TrialTask]:
    """Return the first tasks of a job for an agent: training tasks if it gets any, else those of the evaluation.

    Another agent gets the first tasks of all.
    """
    learner, heldout = job.learner, job.eval
    assert learner.tasks is not None
    held_out = next((each for each in heldout.sets if each.agent == agent), None)
    mode: Mode = "train" if agent in learner.agents.values() or held_out is None else "eval"
    if held_out is None or mode == "train":
        all_tasks, sets = load_tasks(learner.tasks), TaskSets(learner)
        tasks = [task for task in all_tasks if sets.find_settings(task.id).agent == agent] or all_tasks
        sampling_params = learner.sampling_params
    else:
        tasks, sampling_params = load_tasks(held_out.task_source), dict[str, Any]()
    graded = settings.grader.graders if settings.grader is not None else {}
    of_suites = list(_list_rewards_of_suites(job, agent))
    trials = []
    for task in tasks[:MAX_TRIALS]:
        wanted = list(_list_wanted_rewards(settings, job, task.id)) if mode == "train" else []
        trial = TrialTask(
            task,
            mode,
            learner.main_model,
            learner.rollout_timeout_seconds,
            sampling_params,
            role_models=learner.role_models,
            served_models=[*settings.policies, *(model for node in settings.inference for model in node.models)],
            trained_models=[each.model for each in job.learners] if mode == "train" else (),
            wanted_rewards=[each for each in (*wanted, *of_suites) if each.name not in graded],
            nodes=settings.inference,
            prompts=list(_list_prompts(settings, agent)),
        )
        trials.append(trial)
    return trials


def _list_prompts(settings: RunSettings, agent: str) -> Iterator[PromptChoice]:
    """Yield the prompts of an agent that the job improves, as the agent itself sends them."""
    optimize = settings.optimize
    if optimize is not None and optimize.agent == agent:
        for name, prompt in optimize.prompts.items():
            text = read_prompt_text(name, prompt)
            yield PromptChoice(name, 0, text, text, prompt.role)


def _list_wanted_rewards(settings: RunSettings, job: TrainJob, task_id: str) -> Iterator[WantedReward]:
    """Yield the rewards by which learners are trained on a task."""
    for number, learner in enumerate(job.learners):
        setting = f"learners.{number}.reward" if settings.learners else "learner.reward"
        reward = TaskSets(learner).find_settings(task_id).reward
        if reward:
            yield WantedReward(setting, f"{learner.model!r} is trained on", reward)


def _list_rewards_of_suites(job: TrainJob, agent: str) -> Iterator[WantedReward]:
    """Yield the rewards that suites of an agent count."""
    for number, suite in enumerate(job.eval.suites):
        if suite.agent == agent and suite.reward:
            yield WantedReward(f"eval.suites.{number}.reward", f"suite {suite.name!r} counts", suite.reward)
