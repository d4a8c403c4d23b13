"""An evaluation by itself: of a model directory, an endpoint, or a weight version of a run that has ended."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from clickhouse_connect.driver.client import Client

from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.evaluation.evaluation import Evaluation, format_label
from lightningbus.run.evaluation.held_out import build_held_out_request, evaluate_once_served
from lightningbus.run.evaluation.pinned_version import all_pinned, find_version
from lightningbus.run.evaluation.prompt_versions import pin_versions
from lightningbus.run.evaluation.request import ANSWERING_SETTINGS, EvaluationJob, digest_conditions
from lightningbus.run.evaluation.used_label import check_labels
from lightningbus.run.jobs.children import publish_models, start_children, wait_for_runner
from lightningbus.run.processes.stack import LocalStack, complete_learner_settings, start_stack
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.hub_models import check_model_directories
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.tasks.task_loading import load_tasks


def parse_job(settings: RunSettings, samplings: Sequence[str], *, label: str, version: int | None) -> EvaluationJob:
    """Build the job of a run's settings, with its tasks read; raises `lightningbus.tasks.errors.TaskFileError`.

    ``label``: begins the names of the evaluations, so that rollouts of other tasks in the same run stay apart.
    ``version`` of the model that agents call by name; None: the newest, as of all other models.
    """
    assert settings.eval is not None
    request = build_held_out_request(settings, settings.eval, next(iter(settings.all_learners), None))
    versions: dict[str, int | None] = dict.fromkeys(list_versioned_models(settings))
    if versions:
        versions[settings.main_model] = version
    tasks = load_tasks(settings.eval.task_source)
    if label:  # in the record of a run, which may have others
        agents = [each.model_dump(mode="json", include=set(ANSWERING_SETTINGS)) for each in settings.runners]
        conditions = {"agents": agents, "role_models": request.role_models, "timeout": request.rollout_timeout}
        request = replace(request, evaluation=label, id_parts=(digest_conditions(conditions, tasks),))
    return EvaluationJob(request, tasks, samplings, versions)


async def run(settings: RunSettings, job: EvaluationJob, *, publishes_model: bool) -> dict[str, Evaluation]:
    """Start a run's processes but the learner, evaluate one version of each model, and stop them; results by sampling.

    ``publishes_model``: the model is published first, as version 0; else the run has versions.

    Raises `UserError` when a part fails for good, or when there is no such version.
    """
    async with started(settings, job.versions, publishes_model=publishes_model) as (stack, client, versions):
        registries = {model: WeightRegistry(stack.bus, model) for model in versions}
        for registry in registries.values():
            await registry.refresh()
        async with all_pinned(registries, versions):
            pinned = await pin_versions(stack.bus, job.request, versions)
            stack.view.set_phase(f"tasks under {format_label(versions)}: {', then '.join(job.samplings)}")
            results, requests = {}, job.build_requests(pinned)
            await check_labels(stack.bus, client, requests.values())
            for name, request in requests.items():
                results[name] = await evaluate_once_served(stack, client, request, job.tasks)
                stack.view.set_note(f"{name}: {results[name].format_mean()}")
            return results


@asynccontextmanager
async def served(settings: RunSettings, *, publishes_model: bool) -> AsyncIterator[LocalStack]:
    """Start a run's processes but the learner, and keep them up while the block runs; raises as `run`."""
    wanted = dict.fromkeys(list_versioned_models(settings))
    async with started(settings, wanted, publishes_model=publishes_model) as (stack, _, versions):
        await stack.wait_until_served(versions)
        await wait_for_runner(stack)
        stack.view.set_phase("up")
        await stack.view.hide()
        yield stack


@asynccontextmanager
async def started(
    settings: RunSettings, wanted: Mapping[str, int | None], *, publishes_model: bool
) -> AsyncIterator[tuple[LocalStack, Client, dict[str, int]]]:
    """Start a run's processes but the learner while the block runs: them, a client on the store, and the versions.

    ``wanted``: a version of each model, None: the newest. See `run`.
    """
    check_model_directories(settings)
    with RunDirectory(settings.runs / settings.name).lock(fresh=publishes_model) as directory:
        title = f"lightningbus evaluate · {settings.name}"
        async with start_stack(directory, settings.bus, title, settings.policies, is_evaluation=True) as stack:
            versions = {
                model: 0 if publishes_model else await find_version(WeightRegistry(stack.bus, model), version)
                for model, version in wanted.items()
            }
            client, _ = await start_children(stack, settings)
            if publishes_model and versions:
                stack.view.set_phase("publishing the model")
                await publish_models(stack, complete_learner_settings(settings, directory.path))
            yield stack, client, versions


def list_versioned_models(settings: RunSettings) -> tuple[str, ...]:
    """List the models that nodes of the run serve, each of which has versions; none where an endpoint answers. Pure."""
    return settings.policies if settings.inference else ()
