"""An evaluation of a weight version by the nodes and runners of a run that is up."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import is_serving
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import NODE_SECONDS, SAMPLINGS, Evaluation, evaluate
from lightningbus.run.evaluation.pinned_version import all_pinned, find_version, wait_for_evaluations
from lightningbus.run.evaluation.prompt_versions import read_prompt_versions
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.tasks.task_file import TaskInput

RUNNER_SECONDS = 10.0
"""Longest wait for a runner: one that is up says so each second."""


@dataclass(frozen=True, slots=True)
class LiveEvaluation:
    """What is evaluated, and how."""

    run: str
    model: str
    """The model that agents call by name."""
    problems: Sequence[TaskInput]
    samplings: Sequence[str]
    """Of `evaluation.SAMPLINGS`."""
    label: str
    """The evaluations are named ``LABEL-SAMPLING``."""
    versions: Mapping[str, int | None]
    """By model, all that are pinned; None: the newest."""
    samples: int
    """Sampled answers to each problem."""
    deadline: float
    """Seconds without the end of a rollout, beyond ``rollout_timeout``, after which a sampling is given up."""
    rollout_timeout: float
    """Seconds that a rollout may take; one that takes longer counts as 0."""
    agent: str
    role_models: Mapping[str, str]
    """Models that answer for roles of the agent."""
    reward: str
    """Name of the reward that counts; empty: the main one."""


async def evaluate_live(bus: Bus, client: Client, job: LiveEvaluation) -> dict[str, Evaluation]:
    """Pin a version of each model, answer the problems, and unpin them; results by sampling.

    Evaluations of others are waited for, as long as ``deadline``. Raises `UserError` when there is no such version,
    no runner, or no node that serves the version in time.
    """
    registries = {model: WeightRegistry(bus, model) for model in job.versions}
    async with bus.fleet("*") as fleet:
        await _wait_for_member(
            fleet, lambda beat: (beat.role, beat.state) == ("runner", "running"), "runner", RUNNER_SECONDS
        )
        versions = {model: await find_version(registry, job.versions[model]) for model, registry in registries.items()}
        for model, registry in registries.items():
            await _check_free(bus, registry, job, model, versions[model])
        async with all_pinned(registries, versions):
            for model, version in versions.items():
                await _wait_for_node(fleet, model, version)
            prompts = await read_prompt_versions(bus, job.agent)
            return {name: await _evaluate(bus, client, job, name, versions, prompts) for name in job.samplings}


async def _check_free(bus: Bus, registry: WeightRegistry, job: LiveEvaluation, model: str, version: int) -> None:
    """Wait for the evaluations of others; raises `UserError` where somebody keeps another version pinned."""
    try:
        async with asyncio.timeout(job.deadline):
            pin = await wait_for_evaluations(bus, registry, model)
    except TimeoutError:
        raise UserError(f"another evaluation has a version pinned for {job.deadline:g} s: raise deadline") from None
    if pin is not None and pin.version != version:
        raise UserError(
            f"version {pin.version} is pinned by {pin.actor}: evaluate that one, "
            "or unpin it by `lightningbus weights unpin`"
        )


async def _wait_for_node(fleet: Fleet, model: str, version: int) -> None:
    await _wait_for_member(
        fleet,
        partial(is_serving, model=model, version=version),
        f"node with version {version} of {model!r}",
        NODE_SECONDS,
    )


async def _evaluate(
    bus: Bus,
    client: Client,
    job: LiveEvaluation,
    sampling: str,
    versions: Mapping[str, int],
    prompts: Mapping[str, int],
) -> Evaluation:
    return await evaluate(
        bus,
        client,
        job.run,
        job.problems,
        label=f"{job.label}-{sampling}",
        versions=versions,
        model=job.model,
        role_models=job.role_models,
        prompt_versions=prompts,
        samples=job.samples if sampling == "sampled" else 1,
        sampling=SAMPLINGS[sampling],
        deadline=job.deadline,
        rollout_timeout=job.rollout_timeout,
        agent=job.agent,
        reward=job.reward,
    )


async def _wait_for_member(fleet: Fleet, fits: Callable[[Heartbeat], bool], what: str, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not any(map(fits, fleet.members())):
                await fleet.wait_for_change()
    except TimeoutError:
        raise UserError(f"no {what} of the run within {seconds:g} s: `lightningbus status` says what is up") from None
