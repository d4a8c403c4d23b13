"""An evaluation of a weight version by the nodes and runners of a run that is up."""

import asyncio
from collections.abc import Callable
from functools import partial

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import is_serving
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation, evaluate
from lightningbus.run.evaluation.pinned_version import all_pinned, find_version, wait_for_evaluations
from lightningbus.run.evaluation.prompt_versions import pin_versions
from lightningbus.run.evaluation.request import EvaluationJob
from lightningbus.run.evaluation.used_label import check_labels
from lightningbus.run.processes.members import NODE_SECONDS, find_member, is_running_runner
from lightningbus.schemas.fleet import Heartbeat

LIVE_RUNNER_SECONDS = 10.0
"""Longest wait for a runner: one that is up says so each second."""


async def evaluate_live(bus: Bus, client: Client, job: EvaluationJob) -> dict[str, Evaluation]:
    """Pin a version of each model, answer the tasks, and unpin them; results by sampling.

    Evaluations of others are waited for, as long as ``deadline``. Raises `UserError` when there is no such version,
    no runner, or no node that serves the version in time.
    """
    request, registries = job.request, {model: WeightRegistry(bus, model) for model in job.versions}
    async with bus.fleet("*") as fleet:
        await _wait_for_member(fleet, is_running_runner, "runner", LIVE_RUNNER_SECONDS)
        versions = {model: await find_version(registry, job.versions[model]) for model, registry in registries.items()}
        for model, registry in registries.items():
            await _check_free(bus, registry, request.deadline, model, versions[model])
        async with all_pinned(registries, versions):
            for model, version in versions.items():
                serves = partial(is_serving, model=model, version=version)
                await _wait_for_member(fleet, serves, f"node with version {version} of {model!r}", NODE_SECONDS)
            pinned = await pin_versions(bus, request, versions)
            requests = job.build_requests(pinned)
            await check_labels(bus, client, requests.values())
            return {name: await evaluate(bus, client, each, job.tasks) for name, each in requests.items()}


async def _check_free(bus: Bus, registry: WeightRegistry, deadline: float, model: str, version: int) -> None:
    """Wait for the evaluations of others; raises `UserError` where somebody keeps another version pinned."""
    try:
        async with asyncio.timeout(deadline):
            pin = await wait_for_evaluations(bus, registry, model)
    except TimeoutError:
        raise UserError(f"another evaluation has a version pinned for {deadline:g} s: raise deadline") from None
    if pin is not None and pin.version != version:
        raise UserError(
            f"version {pin.version} is pinned by {pin.actor}: evaluate that one, "
            "or unpin it by `lightningbus weights unpin`"
        )


async def _wait_for_member(fleet: Fleet, fits: Callable[[Heartbeat], bool], what: str, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await find_member(fleet, fits)
    except TimeoutError:
        raise UserError(f"no {what} of the run within {seconds:g} s: `lightningbus status` says what is up") from None
