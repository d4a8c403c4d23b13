"""A prompt optimisation from a run file: the processes that it names, then one round."""

import asyncio
from collections.abc import Mapping

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.optimize.early_checks import check_before_start
from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.result import OptimizeResult
from lightningbus.optimize.round import RoundResult, optimize_round
from lightningbus.run.errors import UserError
from lightningbus.run.processes.stack import LocalStack, child_specs, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.results.prompt_files import write_prompts_in_use
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.store.clickhouse.client import StoreUnavailableError, connect, query_row

STORE_SECONDS, NODE_SECONDS, RUNNER_SECONDS = 60.0, 600.0, 120.0
"""Longest waits for a store, a node that serves the model, and a runner that has started the agent."""
STORED_TASKS = "SELECT count() FROM tasks WHERE run_id = {run_id:String}"


async def run(settings: RunSettings, *, resume: bool) -> OptimizeResult:
    """Start what a run file names, optimise its prompts, and stop it again.

    ``resume``: go on where the run of this name was stopped. Raises `UserError` when a part fails for good, and before
    anything is made or started where the run file itself is wrong.
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
    """Every process but the learner, with something for the nodes to serve; a client on the store."""
    assert settings.optimize is not None
    model = settings.optimize.model
    stack.view.set_phase("starting")
    for child in child_specs(settings.model_copy(update={"learner": None}), stack.directory.path):
        await stack.supervisor.start(child)
    store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", STORE_SECONDS)
    stack.write_endpoints(store.address)
    if settings.learner is not None and (await WeightRegistry(stack.bus, model).resolve_target()).serve is None:
        stack.view.set_phase("publishing the model")
        first = next(
            child.settings
            for child in child_specs(settings, stack.directory.path)
            if isinstance(child.settings, LearnerSettings)
        )
        no_steps = first.model_copy(update={"max_steps": 0})
        await stack.supervisor.start(ChildSpec("learner-first", "learner", no_steps))
        await stack.or_child_failure(stack.supervisor.wait_finished("learner-first"))
    if not any(model in runner.endpoints for runner in settings.runners):  # an external one answers
        await stack.wait_for_member(
            lambda beat: beat.role == "inference" and beat.model == model and is_ready(beat.state),
            f"node that serves {model!r}",
            NODE_SECONDS,
        )
    await stack.wait_for_member(lambda beat: (beat.role, beat.state) == ("runner", "running"), "runner", RUNNER_SECONDS)
    database = settings.store.database if settings.store is not None else None
    url = (settings.store.url if settings.store is not None else None) or store.address
    try:
        client = await asyncio.to_thread(connect, url, database) if database else await asyncio.to_thread(connect, url)
        (num_tasks,) = await asyncio.to_thread(query_row, client, STORED_TASKS, {"run_id": settings.name})
    except (StoreUnavailableError, ClickHouseError) as error:
        raise UserError(f"the store cannot be asked: {' '.join(str(error).split())[:300]}") from error
    if num_tasks and not resume:
        raise UserError(f"the store holds a run {settings.name!r} already: give this one another name, or --resume it")
    return client


async def _pinned_weights(stack: LocalStack, settings: RunSettings) -> Mapping[str, int]:
    """The version of the model that is served now: all rollouts are to have the same. Empty for a model without any."""
    assert settings.optimize is not None
    model = settings.optimize.model
    serve = (await WeightRegistry(stack.bus, model).resolve_target()).serve
    return {model: serve.version} if serve is not None else {}
