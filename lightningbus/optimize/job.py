"""Runs a prompt optimisation from a run file: starts the processes it names, then one round."""

from collections.abc import Mapping

from clickhouse_connect.driver.client import Client

from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.optimize.early_checks import check_before_start
from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.result import OptimizeResult
from lightningbus.optimize.round import RoundResult, optimize_round
from lightningbus.run.errors import UserError
from lightningbus.run.jobs.children import publish_models, start_children, wait_for_model, wait_for_runner
from lightningbus.run.processes.stack import LocalStack, complete_learner_settings, start_stack
from lightningbus.run.results.prompt_files import write_prompts_in_use
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.run_file import RunSettings


async def run(settings: RunSettings, *, resume: bool) -> OptimizeResult:
    """Start the processes of a run file, optimise its prompts, and stop the processes again.

    ``resume``: continue where the run of this name was stopped. Raises `UserError` when a part fails for good, and
    before anything is created or started where the run file itself is wrong.
    """
    assert settings.optimize is not None, "checked by the command"
    directory = RunDirectory(settings.runs / settings.name)
    if resume and not directory.path.exists():
        raise UserError(f"{directory.path} holds no optimisation to resume: start it without --resume")
    check_before_start(settings.optimize, settings.name)
    with directory.lock(fresh=not resume):
        async with start_stack(directory, settings.bus, f"lightningbus optimize · {settings.name}") as stack:
            client = await _start(stack, settings, resume)
            stack.view.set_phase("optimising prompts")
            work = optimize_round(
                stack.bus, client, settings.name, settings.optimize, await _pinned_weights(stack, settings),
                settings.role_models, stack.view.set_note,
            )  # fmt: skip
            try:
                return await _keep_result(stack, settings.optimize, await stack.or_child_failure(work))
            except BudgetSpentError as error:
                raise UserError(f"optimize.budget is used up by earlier rounds of the run: {error}; raise it") from None


async def _keep_result(stack: LocalStack, settings: OptimizeSettings, done: RoundResult) -> OptimizeResult:
    """Write the texts in use and the figures to the run's directory: the bus may end with the run."""
    directory = stack.directory.path
    files = await write_prompts_in_use(stack.bus, settings.agent, settings.prompts, directory)
    result = OptimizeResult(done, directory, files)
    result.write()
    return result


async def _start(stack: LocalStack, settings: RunSettings, resume: bool) -> Client:
    """Start every process but the learner, publish a model for the nodes, and return a client on the store."""
    assert settings.optimize is not None
    model = settings.optimize.model
    stack.view.set_phase("starting")
    client, num_tasks = await start_children(stack, settings)
    if num_tasks and not resume:
        raise UserError(f"the store holds a run {settings.name!r} already: give this one another name, or --resume it")
    learners = {
        name: learner
        for name, learner in complete_learner_settings(settings, stack.directory.path).items()
        if (await WeightRegistry(stack.bus, learner.model).resolve_target()).serve is None
    }
    if learners:
        stack.view.set_phase("publishing the model")
        await publish_models(stack, learners)
    if not any(model in runner.endpoints for runner in settings.runners):  # an external one answers
        await wait_for_model(stack, model, f"node that serves {model!r}")
    await wait_for_runner(stack)
    return client


async def _pinned_weights(stack: LocalStack, settings: RunSettings) -> Mapping[str, int]:
    """Return the served version by model, so that all rollouts use the same; empty if the model has none."""
    assert settings.optimize is not None
    model = settings.optimize.model
    serve = (await WeightRegistry(stack.bus, model).resolve_target()).serve
    return {model: serve.version} if serve is not None else {}
