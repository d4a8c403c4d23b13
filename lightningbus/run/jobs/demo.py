"""The main job: the calculator agent, from wrong to right, through every part of the system."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.algorithm import ActorSettings, OptimSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.run.jobs import train_job
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.results.train_result import TrainResult, report
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings, EvalSettings, RunSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.clickhouse.client import connect, query_row
from lightningbus.store.settings import StoreSettings

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calculator"
RUN = "demo"
RUNNERS = 2
POLL_SECONDS = 0.2
EXAMPLE_QUERIES = {
    "which weight version produced each token of a rollout": (
        "SELECT call, position, token, round(exp(logprob), 3) AS probability, version FROM tokens "
        "WHERE rollout_id = '{rollout}' ORDER BY call, position"
    ),
    "reward by weight version": "SELECT * FROM reward_by_version WHERE mode = 'train' ORDER BY version",
    "how stale what was trained on was": "SELECT * FROM staleness ORDER BY step",
    "one rollout's whole trace": (
        "SELECT started_at, name, kind, attributes FROM spans WHERE rollout_id = '{rollout}' ORDER BY started_at"
    ),
}


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Size of the demo."""

    steps: int = 36
    train: int = 512
    heldout: int = 100
    warm_steps: int = 180
    groups_per_step: int = 8
    samples: int = 8
    lr: float = 4e-4
    seed: int = 0
    deadline: float = 60.0


async def run_demo(job: DemoConfig, runs: Path) -> dict[str, Any]:
    """Run the job to its end; returns its figures. Raises `UserError` when a part fails for good."""
    with RunDirectory(runs / RUN).lock(fresh=True) as directory:
        result, example = await _play(job, directory)
    report(result)
    _print_next_steps(example)
    return result.figures


async def _play(job: DemoConfig, directory: RunDirectory) -> tuple[TrainResult, str]:
    """Train, and return the run's result and one of its rollouts."""
    work = directory.path / "work"
    settings, learner, heldout = _settings(job, work)
    async with start_stack(directory, BusSettings(port=0), "lightningbus demo") as stack:
        sizes = ["--train", job.train, "--heldout", job.heldout, "--seed", job.seed, "--out", work]
        await stack.or_child_failure(_python(stack, "problems.py", sizes))
        stack.view.set_phase("making a small model that is mostly wrong; starting vLLM and runners beside")
        sizes = ["--out", work / "model", "--seed", job.seed, "--steps", job.warm_steps, "--threads", 1]
        making = asyncio.create_task(_python(stack, "model.py", sizes))
        try:
            # vLLM takes its weights from the bus: a tokenizer and a configuration are all it needs to start.
            await _wait_for_model_config(work / "model", making)
            result = await train_job.train(stack, settings, [learner], heldout, making)
        finally:
            making.cancel()
        return result, await asyncio.to_thread(_find_example_rollout, directory)


def _settings(job: DemoConfig, work: Path) -> tuple[RunSettings, LearnerSettings, EvalSettings]:
    node = InferenceSettings(
        model_path=work / "model", dtype="float32", max_model_len=128, max_num_seqs=32, cpu_threads=1
    )
    learner = LearnerSettings(
        run=RUN,
        model_path=work / "model",
        tasks=work / "train.jsonl",
        group_size=job.samples,
        groups_per_step=job.groups_per_step,
        max_steps=job.steps,
        max_staleness=1,
        rollout_timeout_seconds=job.deadline,
        sampling_params=SAMPLINGS["sampled"],
        seed=job.seed,
        cpu_threads=1,
        checkpoint_dir=work.parent / "checkpoints",
        actor=ActorSettings(optim=OptimSettings(lr=job.lr, lr_scheduler_type="cosine", min_lr_ratio=0.1)),
    )
    runners = [RunnerSettings(entrypoint="agent:solve", working_dir=EXAMPLE, concurrency=8)] * RUNNERS
    settings = RunSettings(name=RUN, store=StoreSettings(http_port=0), inference=[node], runners=runners)
    return settings, learner, EvalSettings(tasks=work / "heldout.jsonl")


async def _wait_for_model_config(model: Path, making: asyncio.Task[None]) -> None:
    """Wait for the model's configuration, the last thing written before its training; an error of that is raised."""
    while not (model / "config.json").exists():
        if making.done():
            making.result()
        await asyncio.sleep(POLL_SECONDS)


async def _python(stack: LocalStack, script: str, arguments: list[Any]) -> None:
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
            stack.view.note = last
        code = await process.wait()
    finally:
        await kill_group(process)
    stack.view.note = ""
    if code:
        raise UserError(f"{script} failed: {last}")


def _find_example_rollout(directory: RunDirectory) -> str:
    endpoints = directory.read_endpoints()
    assert endpoints is not None, "the run is up"
    return str(query_row(connect(endpoints.sql), "SELECT any(rollout_id) FROM training_rollouts")[0])


def _print_next_steps(rollout: str) -> None:
    console = Console(stderr=True)
    console.print("look further:", style="bold")
    for what, sql in EXAMPLE_QUERIES.items():
        console.print(f"  # {what}", style="dim", highlight=False)
        console.print(f'  lightningbus query "{sql.format(rollout=rollout)}"', highlight=False, soft_wrap=True)
