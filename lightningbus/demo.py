"""The main job: the calculator agent, from wrong to right, through every part of the system."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client
from rich.console import Console
from rich.table import Table

from bus.children import kill_group, spawn
from bus.tasks import Problem, read_problems
from inference.settings import InferenceSettings
from learner.settings import ActorSettings, LearnerSettings, OptimSettings
from lightningbus.evaluation import Evaluation, evaluate
from lightningbus.plot import plot_rewards
from lightningbus.roles import UserError
from lightningbus.rundir import RunDirectory
from lightningbus.settings import BusSettings
from lightningbus.supervisor import Child
from lightningbus.up import Stack, stack
from runners.settings import RunnerSettings
from store.client import connect, first
from store.settings import StoreSettings

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "calculator"
RUN = "demo"
RUNNERS = 2
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 1.0}
ASK = {
    "which weight version produced each token of a rollout": (
        "SELECT call, position, token, round(exp(logprob), 3) AS probability, version FROM token_versions "
        "WHERE rollout = '{rollout}' ORDER BY call, position"
    ),
    "reward by weight version": "SELECT * FROM reward_by_version WHERE mode = 'train' ORDER BY version",
    "how stale what was trained on was": "SELECT * FROM staleness ORDER BY step",
    "one rollout's whole trace": (
        "SELECT start, name, kind, attributes FROM spans WHERE rollout = '{rollout}' ORDER BY start"
    ),
}


@dataclass(frozen=True, slots=True)
class Job:
    """How big the demo is."""

    steps: int = 36
    train: int = 512
    heldout: int = 100
    warm_steps: int = 450
    groups_per_step: int = 16
    samples: int = 8
    lr: float = 4e-4
    seed: int = 0
    deadline: float = 60.0


async def demo(job: Job, runs: Path) -> dict[str, Any]:
    """Run the job to its end; returns the summary. Raises `UserError` when a part fails for good."""
    if not EXAMPLE.exists():
        raise UserError("the demo's example is not here: run it from a clone of the repository, by `make demo`")
    started = time.monotonic()
    directory = RunDirectory(runs / RUN).create(fresh=True)
    async with stack(directory, BusSettings(port=0), "lightningbus demo") as made:
        client, held_out = await _prepare(made, job)
        before = await _evaluate(made, client, held_out, 0)
        made.view.say(f"training: {job.steps} steps of {job.groups_per_step} x {job.samples} rollouts")
        await made.supervisor.start(Child("learner", "learner", _learner(job, directory)))
        await made.unless_failed(made.supervisor.finished("learner"))
        after = await _evaluate(made, client, held_out, job.steps)
        made.view.say("counting")
        await _drained(made, client)
        summary = await asyncio.to_thread(_summary, client, before, after)
        training = await asyncio.to_thread(_curve, client)
        example = str((await asyncio.to_thread(first, client, "SELECT any(rollout) FROM training_uses"))[0])
    picture = directory.path / "reward.png"
    plot_rewards(picture, "Calculator agent: reward over weight versions", training, [*before, *after])
    summary["seconds"] = round(time.monotonic() - started, 1)
    (directory.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    _report(summary, picture, example)
    return summary


async def _prepare(made: Stack, job: Job) -> tuple[Client, list[Problem]]:
    """Problems, model, and every process of the loop but the learner; version 0 is served at the end of it."""
    place, model = made.directory.path / "work", made.directory.path / "work" / "model"
    sizes = ["--train", job.train, "--heldout", job.heldout, "--seed", job.seed, "--out", place]
    await made.unless_failed(_python(made, "problems.py", sizes))
    await made.supervisor.start(
        Child("store", "store", StoreSettings(path=made.directory.store, http_port=0, id="store"))
    )
    made.view.say("making a small model that is mostly wrong; starting vLLM and runners beside")
    sizes = ["--out", model, "--seed", job.seed, "--steps", job.warm_steps, "--threads", 1]
    making = asyncio.create_task(_python(made, "model.py", sizes))
    try:
        # vLLM takes its weights from the bus: a tokenizer and a configuration are all it needs to start.
        await made.unless_failed(_described(made, model, making))
        await made.supervisor.start(Child("inference-0", "inference", _inference(made.directory)))
        for number in range(RUNNERS):
            settings = RunnerSettings(agent="agent:solve", path=EXAMPLE, concurrency=8, id=f"runner-{number}")
            await made.supervisor.start(Child(f"runner-{number}", "runner", settings))
        await made.unless_failed(making)
    finally:
        making.cancel()
    made.view.say("publishing it as version 0")
    # A learner of no steps publishes the model, writes its checkpoint and ends.
    await made.supervisor.start(Child("learner-first", "learner", _learner(job, made.directory, steps=0)))
    store = await made.member(lambda beat: beat.role == "store", "store", 60)
    made.announce(store.address)
    client = await asyncio.to_thread(connect, store.address)
    await made.unless_failed(made.supervisor.finished("learner-first"))
    await made.member(lambda beat: beat.role == "runner" and beat.state == "running", "runner", 120)
    return client, read_problems(place / "heldout.jsonl")


async def _described(made: Stack, model: Path, making: asyncio.Task[None]) -> None:
    """Wait for the model's configuration, the last thing written before its training; an error of that is raised."""
    while not (model / "config.json").exists():
        if making.done():
            making.result()
        await made.fleet.changed()  # the store's heartbeat, each second


async def _evaluate(made: Stack, client: Client, problems: list[Problem], version: int) -> list[Evaluation]:
    made.view.say(f"held-out problems under version {version}: greedy, then sampled")
    await made.member(lambda beat: beat.role == "inference" and beat.version == version, f"version {version}", 600)
    results = []
    for label, samples, sampling in (("greedy", 1, GREEDY), ("sampled", 2, SAMPLED)):
        work = evaluate(
            made.bus, client, RUN, problems, label=label, version=version, samples=samples, sampling=sampling
        )
        results.append(await made.unless_failed(work))
        made.view.note = f"{label} accuracy of version {version}: {results[-1].accuracy:.2f}"
    return results


async def _drained(made: Stack, client: Client) -> None:
    """Wait until everything published has ended, as far as it will within half a minute; the count is the store's."""
    try:
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(first, client, "SELECT count() FROM lost_rollouts"))[0]:
                await made.fleet.changed()
    except TimeoutError:
        return


async def _python(made: Stack, script: str, arguments: list[Any]) -> None:
    process = await spawn(
        sys.executable,
        str(EXAMPLE / script),
        *map(str, arguments),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    assert process.stderr is not None
    last = ""
    try:
        async for line in process.stderr:
            last = line.decode(errors="replace").strip() or last
            made.view.note = last
        code = await process.wait()
    finally:
        await kill_group(process)
    made.view.note = ""
    if code:
        raise UserError(f"{script} failed: {last}")


def _inference(directory: RunDirectory) -> InferenceSettings:
    work = directory.path / "work"
    return InferenceSettings(
        model_path=work / "model",
        id="inference-0",
        dtype="float32",
        max_model_len=128,
        max_num_seqs=32,
        threads=1,
        work=work / "inference-0",
    )


def _learner(job: Job, directory: RunDirectory, steps: int | None = None) -> LearnerSettings:
    return LearnerSettings(
        run=RUN,
        model_path=directory.path / "work" / "model",
        tasks=directory.path / "work" / "train.jsonl",
        samples=job.samples,
        groups_per_step=job.groups_per_step,
        steps=job.steps if steps is None else steps,
        max_staleness=1,
        deadline=job.deadline,
        sampling=SAMPLED,
        seed=job.seed,
        threads=1,
        checkpoints=directory.path / "checkpoints",
        actor=ActorSettings(optim=OptimSettings(lr=job.lr, lr_scheduler_type="cosine", min_lr_ratio=0.1)),
    )


def _summary(client: Client, before: list[Evaluation], after: list[Evaluation]) -> dict[str, Any]:
    """The figures, counted by the store from what was published and what arrived."""

    def one(sql: str) -> Any:
        return first(client, sql)[0]

    weighed = "round(sum(mean_staleness * tokens) / sum(tokens), 3)"
    return {
        **{f"{result.label}_before": round(result.accuracy, 4) for result in before},
        **{f"{result.label}_after": round(result.accuracy, 4) for result in after},
        "weight_versions": one("SELECT uniqExact(version) FROM weight_versions"),
        "rollouts": one("SELECT count() FROM rollouts"),
        "tokens_trained": one("SELECT sum(tokens) FROM training_uses WHERE trained"),
        "rollouts_lost": one("SELECT count() FROM lost_rollouts"),
        "rollouts_trained_twice": one("SELECT count() FROM trained_twice"),
        "max_staleness": one("SELECT max(max_staleness) FROM staleness"),
        "mean_staleness": one(f"SELECT {weighed} FROM staleness"),
    }


def _curve(client: Client) -> list[tuple[int, float, float, int]]:
    rows = client.query(
        "SELECT version, mean_reward, reward_spread, rollouts FROM reward_by_version "
        "WHERE mode = 'train' ORDER BY version"
    )
    return [(int(version), float(mean), float(spread), int(count)) for version, mean, spread, count in rows.result_rows]


def _report(summary: Mapping[str, Any], picture: Path, rollout: str) -> None:
    console = Console(stderr=True)
    table = Table(title="held-out accuracy", title_style="bold", box=None, header_style="bold")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right")
    for label in ("greedy", "sampled"):
        table.add_row(label, f"{summary[f'{label}_before']:.2f}", f"{summary[f'{label}_after']:.2f}")
    console.print(table)
    console.print(
        f"{summary['rollouts']} rollouts, {summary['tokens_trained']} tokens trained into "
        f"{summary['weight_versions']} weight versions in {summary['seconds']:.0f} s; "
        f"{summary['rollouts_lost']} lost, {summary['rollouts_trained_twice']} trained twice; "
        f"staleness {summary['mean_staleness']} on average, {summary['max_staleness']} at most",
        highlight=False,
    )
    console.print(f"picture: {picture}\n", highlight=False)
    console.print("look further:", style="bold")
    for what, sql in ASK.items():
        console.print(f"  # {what}", style="dim", highlight=False)
        console.print(f'  lightningbus query "{sql.format(rollout=rollout)}"', highlight=False, soft_wrap=True)
    print(json.dumps(dict(summary)), flush=True)
