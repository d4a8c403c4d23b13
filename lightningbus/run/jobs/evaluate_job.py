"""An evaluation by itself: of a model directory, or of a weight version of a run that has ended."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.evaluation import ROLLOUT_SECONDS, Evaluation, format_label
from lightningbus.run.evaluation.held_out import PolicyVersions, evaluate_once_served
from lightningbus.run.evaluation.pinned_version import all_pinned, find_version
from lightningbus.run.evaluation.prompt_versions import read_prompt_versions
from lightningbus.run.processes.stack import LocalStack, child_specs, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import EvalSettings, RunSettings
from lightningbus.store.clickhouse.client import connect
from lightningbus.tasks.task_file import TaskInput, load_tasks


@dataclass(frozen=True, slots=True)
class EvaluateJob:
    """What is evaluated, and how."""

    eval: EvalSettings
    problems: Sequence[TaskInput]
    samplings: Sequence[str]
    """Of `evaluation.SAMPLINGS`."""
    label_prefix: str = ""
    """Part of the labels, so that rollouts of other problems in the same run stay apart."""
    first: LearnerSettings | None = None
    """Publishes the model that is evaluated; None: the run has versions."""
    version: int | None = None
    """Weight version of the model that agents call by name; None: the newest, as of all other models."""


def parse_job(
    settings: RunSettings, samplings: Sequence[str], *, publishes_model: bool, label_prefix: str, version: int | None
) -> EvaluateJob:
    """The job of a run's settings, with its problems read; raises `lightningbus.tasks.task_file.TaskFileError`."""
    assert settings.eval is not None
    problems = load_tasks(settings.eval.tasks)
    first = None
    if publishes_model:
        children = child_specs(settings, settings.runs / settings.name)
        (first,) = (child.settings for child in children if isinstance(child.settings, LearnerSettings))
    return EvaluateJob(settings.eval, problems, samplings, label_prefix, first, version)


async def run(settings: RunSettings, job: EvaluateJob) -> dict[str, Evaluation]:
    """Start a run's processes but the learner, evaluate one version of each model, and stop them; results by sampling.

    Raises `UserError` when a part fails for good, or when there is no such version.
    """
    with RunDirectory(settings.runs / settings.name).lock(fresh=job.first is not None) as directory:
        title = f"lightningbus evaluate · {settings.name}"
        async with start_stack(directory, settings.bus, title, settings.policies) as stack:
            registries = {model: WeightRegistry(stack.bus, model) for model in settings.policies}
            versions = dict.fromkeys(registries, 0)
            if job.first is None:
                for model, registry in registries.items():
                    wanted = job.version if model == settings.main_model else None
                    versions[model] = await find_version(registry, wanted)
            for child in child_specs(settings.without_learners(), directory.path):
                await stack.supervisor.start(child)
            store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", 60)
            stack.write_endpoints(store.address)
            if job.first is not None:
                stack.view.set_phase("publishing the model")
                await stack.supervisor.start(ChildSpec("learner-first", "learner", job.first))
                await stack.or_child_failure(stack.supervisor.wait_finished("learner-first"))
                await registries[settings.main_model].refresh()
            async with all_pinned(registries, versions):
                return await _evaluate(stack, store.address, settings, job, versions)


async def _evaluate(
    stack: LocalStack, sql: str, settings: RunSettings, job: EvaluateJob, versions: Mapping[str, int]
) -> dict[str, Evaluation]:
    learner = next(iter(settings.all_learners), None)
    reward, rollout_timeout = (learner.reward, learner.rollout_timeout_seconds) if learner else ("", ROLLOUT_SECONDS)
    prompts = await read_prompt_versions(stack.bus, job.eval.agent)
    policies = PolicyVersions(versions, settings.main_model, settings.role_models, reward, prompts)
    stack.view.set_phase(f"problems under {format_label(versions)}: {', then '.join(job.samplings)}")
    assert settings.store is not None, "an evaluation has a store"
    client = await asyncio.to_thread(connect, settings.store.url or sql, settings.store.database)
    results = {}
    for name in job.samplings:
        results[name] = await evaluate_once_served(
            stack, client, settings.name, job.eval, job.problems, name, policies, rollout_timeout, job.label_prefix
        )
        stack.view.set_note(f"{name}: {results[name].format_mean()}")
    return results
