"""An evaluation by itself: of a model directory, or of a weight version of a run that has ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bus.fleet.node_state import is_ready, serves_version
from bus.task_file import TaskInput, load_tasks
from bus.weights.registry import WeightRegistry
from learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation import Evaluation, evaluate
from lightningbus.run.held_out import NODE_SECONDS, SAMPLINGS
from lightningbus.run.role_process import UserError
from lightningbus.run.run_directory import RunDirectory
from lightningbus.run.settings import EvalSettings, RunSettings
from lightningbus.run.stack import LocalStack, child_specs, start_stack
from lightningbus.run.supervisor import ChildSpec
from store.clickhouse.client import connect

ACTOR = "evaluate"
"""Who pins the version, in the record of decisions."""


@dataclass(frozen=True, slots=True)
class EvaluateJob:
    """What is evaluated, and how."""

    eval: EvalSettings
    problems: Sequence[TaskInput]
    samplings: Sequence[str]
    """Of `SAMPLINGS`."""
    label_prefix: str = ""
    """Part of the labels, so that rollouts of other problems in the same run stay apart."""
    first: LearnerSettings | None = None
    """Publishes the model that is evaluated; None: the run has versions."""
    version: int | None = None
    """Weight version of the run; None: the newest."""


def parse_job(
    settings: RunSettings, samplings: Sequence[str], *, publishes_model: bool, label_prefix: str, version: int | None
) -> EvaluateJob:
    """The job of a run's settings, with its problems read; raises `bus.task_file.TaskFileError`."""
    assert settings.eval is not None
    problems = load_tasks(settings.eval.tasks)
    first = None
    if publishes_model:
        children = child_specs(settings, settings.runs / settings.name)
        (first,) = (child.settings for child in children if isinstance(child.settings, LearnerSettings))
    return EvaluateJob(settings.eval, problems, samplings, label_prefix, first, version)


async def run(settings: RunSettings, job: EvaluateJob) -> dict[str, Evaluation]:
    """Start a run's processes but the learner, evaluate one version, and stop them; results by sampling.

    Raises `UserError` when a part fails for good, or when there is no such version.
    """
    with RunDirectory(settings.runs / settings.name).lock(fresh=job.first is not None) as directory:
        async with start_stack(directory, settings.bus, f"lightningbus evaluate · {settings.name}") as stack:
            for child in child_specs(settings.model_copy(update={"learner": None}), directory.path):
                await stack.supervisor.start(child)
            store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", 60)
            stack.write_endpoints(store.address)
            if job.first is not None:
                stack.view.set_phase("publishing the model")
                await stack.supervisor.start(ChildSpec("learner-first", "learner", job.first))
                await stack.or_child_failure(stack.supervisor.wait_finished("learner-first"))
            model = settings.inference[0].model
            registry = WeightRegistry(stack.bus, model)
            version = await _find_version(registry, job.version)
            await registry.refresh()
            if registry.state.pinned != version:
                await registry.append_decision("pinned", version, actor=ACTOR, reason="it is evaluated")
            try:
                return await _evaluate(stack, store.address, settings.name, job, version)
            finally:
                await registry.append_decision("unpinned", version, actor=ACTOR)


async def _find_version(registry: WeightRegistry, version: int | None) -> int:
    """The version, if the bus still has it, or the newest; raises `UserError`."""
    manifests = {manifest.version: manifest async for manifest, _ in registry.list_versions()}
    available = [number for number, manifest in manifests.items() if not await registry.find_expired_blob(manifest)]
    if version is None and available:
        return max(available)
    if version not in available:
        names = ", ".join(map(str, sorted(available))) or "none"
        raise UserError(f"version {version} is not on the run's bus any more; these are: {names}")
    return version


async def _evaluate(stack: LocalStack, sql: str, run_id: str, job: EvaluateJob, version: int) -> dict[str, Evaluation]:
    stack.view.set_phase(f"problems under version {version}: {', then '.join(job.samplings)}")
    await stack.wait_for_member(
        lambda beat: beat.role == "inference" and is_ready(beat.state) and serves_version(beat, version),
        f"node with version {version}",
        NODE_SECONDS,
    )
    client = await asyncio.to_thread(connect, sql)
    results = {}
    for name in job.samplings:
        work = evaluate(
            stack.bus, client, run_id, job.problems, label=job.label_prefix + name, version=version,
            samples=job.eval.samples if name == "sampled" else 1, sampling=SAMPLINGS[name],
            deadline=job.eval.deadline, agent=job.eval.agent,
        )  # fmt: skip
        results[name] = await stack.or_child_failure(work)
        stack.view.set_note(f"{name}: {results[name].format_mean()}")
    return results
