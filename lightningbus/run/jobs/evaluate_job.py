"""An evaluation by itself: of a model directory, or of a weight version of a run that has ended."""

from collections.abc import Sequence
from dataclasses import replace

from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.evaluation.evaluation import Evaluation, format_label
from lightningbus.run.evaluation.held_out import build_held_out_request, evaluate_once_served
from lightningbus.run.evaluation.pinned_version import all_pinned, find_version
from lightningbus.run.evaluation.prompt_versions import pin_versions
from lightningbus.run.evaluation.request import EvaluationJob
from lightningbus.run.jobs.children import publish_models, start_children
from lightningbus.run.processes.stack import complete_learner_settings, start_stack
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.tasks.task_loading import load_tasks


def parse_job(settings: RunSettings, samplings: Sequence[str], *, label: str, version: int | None) -> EvaluationJob:
    """Build the job of a run's settings, with its tasks read; raises `lightningbus.tasks.errors.TaskFileError`.

    ``label``: begins the names of the evaluations, so that rollouts of other tasks in the same run stay apart.
    ``version`` of the model that agents call by name; None: the newest, as of all other models.
    """
    assert settings.eval is not None
    request = build_held_out_request(settings, settings.eval, next(iter(settings.all_learners), None))
    versions = {**dict.fromkeys(settings.policies), settings.main_model: version}
    return EvaluationJob(replace(request, evaluation=label), load_tasks(settings.eval.tasks), samplings, versions)


async def run(settings: RunSettings, job: EvaluationJob, *, publishes_model: bool) -> dict[str, Evaluation]:
    """Start a run's processes but the learner, evaluate one version of each model, and stop them; results by sampling.

    ``publishes_model``: the model is published first, as version 0; else the run has versions.

    Raises `UserError` when a part fails for good, or when there is no such version.
    """
    with RunDirectory(settings.runs / settings.name).lock(fresh=publishes_model) as directory:
        title = f"lightningbus evaluate · {settings.name}"
        async with start_stack(directory, settings.bus, title, settings.policies) as stack:
            registries = {model: WeightRegistry(stack.bus, model) for model in job.versions}
            versions = {
                model: 0 if publishes_model else await find_version(registry, job.versions[model])
                for model, registry in registries.items()
            }
            client, _ = await start_children(stack, settings)
            if publishes_model:
                stack.view.set_phase("publishing the model")
                await publish_models(stack, complete_learner_settings(settings, directory.path))
                await registries[settings.main_model].refresh()
            async with all_pinned(registries, versions):
                pinned = await pin_versions(stack.bus, job.request, versions)
                stack.view.set_phase(f"tasks under {format_label(versions)}: {', then '.join(job.samplings)}")
                results = {}
                for name in job.samplings:
                    results[name] = await evaluate_once_served(stack, client, pinned.with_sampling(name), job.tasks)
                    stack.view.set_note(f"{name}: {results[name].format_mean()}")
                return results
