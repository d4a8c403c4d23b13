"""Processes that every job starts: store, nodes and runners, and learners that publish what nodes are to serve."""

import asyncio
from collections.abc import Awaitable, Mapping

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.bus.weights.registry import ServingTarget, WeightRegistry
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.processes.members import (
    NODE_SECONDS,
    RUNNER_SECONDS,
    is_running_runner,
)
from lightningbus.run.processes.stack import LocalStack, child_specs
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.text import shorten_line
from lightningbus.store.clickhouse.client import StoreUnreachableError, connect, query_row
from lightningbus.store.settings import StoreSettings

TRIAL_SECONDS = 600.0
"""Longest wait for the trial of a version: until a node's engine has started, and tried it."""
STORED_TASKS = "SELECT count() FROM tasks WHERE run_id = {run_id:String}"


async def start_children(
    stack: LocalStack, settings: RunSettings, ready: Awaitable[object] | None = None
) -> tuple[Client, int]:
    """Start every process of a run but the learners; a client on the store, and how many tasks of the run it holds.

    ``ready``: what else is waited for. Raises `UserError`.
    """
    for child in child_specs(settings.without_learners(), stack.directory.path):
        await stack.supervisor.start(child)
    if ready is not None:
        await stack.or_child_failure(ready)
    beat = await stack.wait_for_store()
    stack.write_endpoints(beat.address)
    store = settings.store or StoreSettings()  # one that the bus has already
    try:
        client = await asyncio.to_thread(connect, store.url or beat.address, store.database)
        (num_tasks,) = await asyncio.to_thread(query_row, client, STORED_TASKS, {"run_id": settings.name})
    except (StoreUnreachableError, ClickHouseError) as error:
        raise UserError(f"the store cannot be asked: {shorten_line(str(error), 300)}") from error
    return client, num_tasks


async def publish_models(stack: LocalStack, learners: Mapping[str, LearnerSettings]) -> None:
    """Publish version 0 of each model, by a learner of no steps, which writes its checkpoint too and ends."""
    names = {f"{name}-first": settings.model_copy(update={"max_steps": 0}) for name, settings in learners.items()}
    for name, settings in names.items():
        await stack.supervisor.start(ChildSpec(name, "learner", settings))
    for name in names:
        await stack.or_child_failure(stack.supervisor.wait_finished(name))
    for settings in learners.values():
        await wait_for_trial(stack, WeightRegistry(stack.bus, settings.model))


async def wait_for_trial(stack: LocalStack, releases: WeightRegistry) -> int:
    """Wait until a node has tried the newest version of a model, if it has to be; return the version to serve.

    Raises `UserError` if there is none, with the reason, or if no node tries it in time.
    """

    async def resolve_tried_target() -> ServingTarget:
        while (choice := await releases.resolve_target()).canary is not None:
            await stack.fleet.wait_for_change()
        return choice

    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            choice = await stack.or_child_failure(resolve_tried_target())
    except TimeoutError:
        raise UserError(f"no node has tried the last version within {TRIAL_SECONDS:g} s: see the nodes' logs") from None
    if choice.serve is None:
        revocations = (item.reason for item in reversed(releases.state.decisions) if item.action == "revoked")
        reason = next(filter(None, revocations), "`lightningbus weights list` says why")
        raise UserError(f"no weight version of {releases.state.model!r} is left to serve: {reason}")
    return choice.serve.version


async def wait_for_model(stack: LocalStack, model: str, what: str) -> None:
    """Wait for a node that answers for a model."""

    def has_model(beat: Heartbeat) -> bool:
        return beat.role == "inference" and beat.model == model and is_ready(beat.state)

    await stack.wait_for_member(has_model, what, NODE_SECONDS)


async def wait_for_runner(stack: LocalStack) -> None:
    """Wait for a runner that has started its agent."""
    await stack.wait_for_member(is_running_runner, "runner", RUNNER_SECONDS)
