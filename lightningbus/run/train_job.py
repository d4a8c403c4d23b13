"""A training job from start to end: how good the model is, training, how good it is then; figures and a picture."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rich.console import Console
from rich.table import Table

from bus.task_file import TaskInput, load_tasks
from bus.weights.registry import ServingTarget, WeightRegistry
from learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation import Evaluation, evaluate
from lightningbus.run.plot import Point, plot_rewards
from lightningbus.run.preflight import TrainJob
from lightningbus.run.role_process import UserError
from lightningbus.run.run_directory import RunDirectory
from lightningbus.run.settings import EvalSettings, RunSettings
from lightningbus.run.stack import LocalStack, child_specs, start_stack
from lightningbus.run.supervisor import ChildSpec
from lightningbus.run.train_result import TrainResult
from store.clickhouse.client import StoreUnavailable, connect, query_row

CANARY_TIMEOUT_SECONDS = 600.0
"""Longest wait for a node that tries a version."""
SAMPLINGS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0}}
"""How held-out problems are answered, by the name of the figure."""
RESULTS, PICTURE = "results.json", "reward.png"
COUNTS = {
    "weight_versions": "SELECT uniqExact(version) FROM weight_versions WHERE run_id = {run_id:String}",
    "rollouts": "SELECT count() FROM rollouts WHERE run_id = {run_id:String}",
    "tokens_trained": "SELECT sum(tokens) FROM training_rollouts WHERE run_id = {run_id:String} AND trained",
    "rollouts_lost": "SELECT count() FROM check_unfinished_rollouts WHERE run_id = {run_id:String}",
    "rollouts_trained_twice": "SELECT count() FROM check_duplicate_training WHERE run_id = {run_id:String}",
    "max_staleness": "SELECT max(max_staleness) FROM staleness WHERE run_id = {run_id:String}",
    "mean_staleness": (
        "SELECT round(sum(mean_staleness * tokens) / sum(tokens), 3) FROM staleness WHERE run_id = {run_id:String}"
    ),
}
"""What the store counts from what was published and what arrived."""
STORED_TASKS = "SELECT count() FROM tasks WHERE run_id = {run_id:String}"
CURVE = (
    "SELECT version, mean_reward, reward_spread, rollouts FROM reward_by_version "
    "WHERE run_id = {run_id:String} AND mode = 'train' ORDER BY version"
)


async def run(settings: RunSettings, job: TrainJob, *, resume: bool = False) -> TrainResult:
    """Run a job by itself, on its own bus or the one its settings name, to its end; prints nothing at the end.

    ``resume``: go on where the run of this name was stopped. Raises `UserError` when a part fails for good.
    """
    if resume:
        raise UserError("train cannot resume yet: start the run without it")
    with RunDirectory(settings.runs / settings.name).lock(fresh=True) as directory:
        async with start_stack(directory, settings.bus, f"lightningbus train · {settings.name}") as stack:
            return await train(stack, settings, job.learner, job.eval, None)


async def train(
    stack: LocalStack,
    settings: RunSettings,
    learner: LearnerSettings,
    heldout: EvalSettings,
    ready: Awaitable[object] | None,
) -> TrainResult:
    """Run a job on a bus that is up; its figures lie in the run's directory too.

    ``ready``: what else has to be there before version 0 is published; the other processes start meanwhile.
    Raises `UserError` when a part fails for good.
    """
    started = time.monotonic()
    problems = load_tasks(heldout.tasks)
    client = await _wait_until_serving(stack, settings, ready)
    await _publish_first(stack, learner)
    before = await _evaluate(stack, client, settings.name, heldout, problems, await _wait_for_version(stack, learner))
    _write(stack, _accuracies("before", before))
    stack.view.set_phase(
        f"training: {learner.max_steps} steps of {learner.groups_per_step} x {learner.group_size} rollouts"
    )
    await stack.supervisor.start(ChildSpec("learner", "learner", learner))
    await stack.or_child_failure(stack.supervisor.wait_finished("learner"))
    after = await _evaluate(stack, client, settings.name, heldout, problems, await _wait_for_version(stack, learner))
    stack.view.set_phase("counting")
    await _wait_until_stored(stack, client, settings.name, heldout.deadline)
    figures = await asyncio.to_thread(_figures, client, settings.name, before, after)
    figures |= {"max_reward": heldout.max_reward, "seconds": round(time.monotonic() - started, 1)}
    curve = await asyncio.to_thread(_curve, client, settings.name)
    _write(stack, figures)
    title = f"{settings.name}: reward over weight versions"
    plot_rewards(stack.directory.path / PICTURE, title, curve, [*before, *after])
    return TrainResult(stack.directory.path, figures, [*before, *after])


def _write(stack: LocalStack, figures: dict[str, Any]) -> None:
    """What is known by now, in the run's directory."""
    (stack.directory.path / RESULTS).write_text(json.dumps(figures, indent=2) + "\n")


async def _wait_for_version(stack: LocalStack, learner: LearnerSettings) -> int:
    """The newest weight version that nodes serve; one that is to be tried has been by then."""
    releases = WeightRegistry(stack.bus, learner.model)

    async def tried() -> ServingTarget:
        while (choice := await releases.resolve_target()).canary is not None:
            await stack.fleet.wait_for_change()
        return choice

    try:
        async with asyncio.timeout(CANARY_TIMEOUT_SECONDS):
            choice = await stack.or_child_failure(tried())
    except TimeoutError:
        raise UserError(
            f"no node has tried the last version within {CANARY_TIMEOUT_SECONDS:g} s: see the nodes' logs"
        ) from None
    if choice.serve is None:
        raise UserError("no weight version is left to serve: `lightningbus weights list` says why")
    return choice.serve.version


async def _wait_until_serving(stack: LocalStack, settings: RunSettings, ready: Awaitable[object] | None) -> Client:
    """Every process of the job but the learner; a client on its store."""
    for child in child_specs(settings.model_copy(update={"learner": None}), stack.directory.path):
        await stack.supervisor.start(child)
    if ready is not None:
        await stack.or_child_failure(ready)
    store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", 60)
    stack.write_endpoints(store.address)
    assert settings.store is not None, "a training job has a store"
    try:
        client = await asyncio.to_thread(connect, settings.store.url or store.address, settings.store.database)
        row = await asyncio.to_thread(query_row, client, STORED_TASKS, {"run_id": settings.name})
    except (StoreUnavailable, ClickHouseError) as error:
        raise UserError(f"the store cannot be asked: {' '.join(str(error).split())[:300]}") from error
    if row[0]:
        raise UserError(f"the store holds a run {settings.name!r} already: give this one another name")
    return client


async def _publish_first(stack: LocalStack, learner: LearnerSettings) -> None:
    """A learner of no steps publishes the model, writes its checkpoint and ends."""
    stack.view.set_phase("publishing version 0")
    await stack.supervisor.start(ChildSpec("learner-first", "learner", learner.model_copy(update={"max_steps": 0})))
    await stack.or_child_failure(stack.supervisor.wait_finished("learner-first"))
    await stack.wait_for_member(lambda beat: beat.role == "runner" and beat.state == "running", "runner", 120)


async def _evaluate(
    stack: LocalStack, client: Client, run: str, heldout: EvalSettings, problems: list[TaskInput], version: int
) -> list[Evaluation]:
    stack.view.set_phase(f"held-out problems under version {version}: greedy, then sampled")
    await stack.wait_for_member(
        lambda beat: beat.role == "inference" and beat.version == version, f"version {version}", 600
    )
    results = []
    for label, sampling in SAMPLINGS.items():
        samples = heldout.samples if label == "sampled" else 1
        work = evaluate(
            stack.bus, client, run, problems, label=label, version=version, samples=samples, sampling=sampling,
            deadline=heldout.deadline, agent=heldout.agent,
        )  # fmt: skip
        results.append(await stack.or_child_failure(work))
        stack.view.note = f"{label}, version {version}: {results[-1].accuracy:.2f}"
    return results


async def _wait_until_stored(stack: LocalStack, client: Client, run: str, seconds: float) -> None:
    """Wait until everything published has ended, evaluations of others too; gives up when none ends for ``seconds``."""
    loop, num_left = asyncio.get_running_loop(), -1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds) as limit:
            while num_left:
                before = num_left
                (num_left,) = await asyncio.to_thread(query_row, client, COUNTS["rollouts_lost"], {"run_id": run})
                if num_left != before:
                    limit.reschedule(loop.time() + seconds)
                await stack.fleet.wait_for_change()


def _figures(client: Client, run: str, before: list[Evaluation], after: list[Evaluation]) -> dict[str, Any]:
    return {
        **_accuracies("before", before),
        **_accuracies("after", after),
        **{name: query_row(client, sql, {"run_id": run})[0] for name, sql in COUNTS.items()},
    }


def _accuracies(when: str, results: list[Evaluation]) -> dict[str, float]:
    return {f"{result.label}_{when}": round(result.accuracy, 4) for result in results}


def _curve(client: Client, run: str) -> list[Point]:
    rows = client.query(CURVE, parameters={"run_id": run}).result_rows
    return [(int(version), float(mean), float(spread), int(count)) for version, mean, spread, count in rows]


def report(result: TrainResult) -> None:
    """Say in the terminal what came of it; the figures as JSON on standard output."""
    figures = result.figures
    console = Console(stderr=True)
    table = Table(title="held-out reward", title_style="bold", box=None, header_style="bold")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right")
    for label in SAMPLINGS:
        table.add_row(label, f"{figures[f'{label}_before']:.2f}", f"{figures[f'{label}_after']:.2f}")
    console.print(table)
    console.print(
        f"{figures['rollouts']} rollouts, {figures['tokens_trained']} tokens trained into "
        f"{figures['weight_versions']} weight versions in {figures['seconds']:.0f} s; "
        f"{figures['rollouts_lost']} lost, {figures['rollouts_trained_twice']} trained twice; "
        f"staleness {figures['mean_staleness']} on average, {figures['max_staleness']} at most",
        highlight=False,
    )
    console.print(f"picture: {result.directory / PICTURE}\n", highlight=False)
    print(json.dumps(figures), flush=True)
