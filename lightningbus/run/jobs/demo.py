"""The main job: the calculator agent, from wrong to right, through every part of the system."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.jobs import train_job
from lightningbus.run.jobs.demo_settings import EXAMPLE, RUN, DemoConfig, build_settings, choose_size
from lightningbus.run.pretrained.catalog import MODELS
from lightningbus.run.pretrained.folder import provide_folder
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.projects.template import make_tasks, read_call_example
from lightningbus.run.results.base_files import record_base_models
from lightningbus.run.results.train_result import JobResult, report
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import BusSettings, RunSettings
from lightningbus.store.clickhouse.client import connect, query_row

POLL_SECONDS = 0.2
TINY_MODEL = "tiny"
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


async def run_demo(model: str, runs: Path, steps: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Run the demo of a model to its end; returns its figures. Raises `UserError` when a part fails for good.

    ``model`` is `TINY_MODEL`, a name of `MODELS`, or a directory; ``steps`` None: as many as the model needs.
    """
    job = choose_size(await _find_model(model), steps, seed, has_gpu())
    with RunDirectory(runs / RUN).lock(fresh=True) as directory:
        result, example = await _play(job, directory)
    report(result)
    _print_next_steps(example)
    return result.figures


async def _find_model(model: str) -> Path | None:
    """Return the directory of a pretrained model, fetched if `MODELS` names it; None: the demo makes a small one."""
    if model == TINY_MODEL:
        return None
    if model in MODELS:
        try:
            return await provide_folder(MODELS[model], Console(stderr=True).print)
        except UserError as error:
            raise UserError(f"{error}; `lightningbus demo --model {TINY_MODEL}` needs no download") from error
    if not (Path(model) / "config.json").exists():
        names = ", ".join((TINY_MODEL, *MODELS))
        raise UserError(f"--model: {model} is neither one of {names} nor a directory with config.json")
    return Path(model).resolve()


async def _play(job: DemoConfig, directory: RunDirectory) -> tuple[JobResult, str]:
    """Train, and return the run's result and one of its rollouts."""
    work = directory.path / "work"
    settings, learner, heldout = build_settings(job, work)
    async with start_stack(directory, BusSettings(port=0), "lightningbus demo") as stack:
        if job.model is None:
            result = await _make_and_train(job, stack, settings, learner, heldout)
        else:
            _write_tasks(job, work)
            record_base_models(directory.path, [learner])
            result = await train_job.train(stack, settings, [learner], heldout, None)
        return result, await asyncio.to_thread(_find_example_rollout, directory)


def _write_tasks(job: DemoConfig, work: Path) -> None:
    """Write the tasks of a pretrained model, each with an example of a call."""
    texts = make_tasks(job.train, job.heldout, job.seed, read_call_example())
    work.mkdir(parents=True, exist_ok=True)
    for name, text in zip(("train.jsonl", "heldout.jsonl"), texts, strict=True):
        (work / name).write_text(text, encoding="utf-8")


async def _make_and_train(
    job: DemoConfig, stack: LocalStack, settings: RunSettings, learner: LearnerSettings, heldout: EvalSettings
) -> JobResult:
    """Make tasks, then the small model while the other processes start, and train it."""
    tasks = ["--train", job.train, "--heldout", job.heldout, "--seed", job.seed, "--out", learner.model_path.parent]
    await stack.or_child_failure(_python(stack, "problems.py", tasks))
    stack.view.set_phase("making a small model that is mostly wrong; starting vLLM and runners beside")
    sizes = ["--out", learner.model_path, "--seed", job.seed, "--steps", job.warm_steps, "--threads", 1]
    making = asyncio.create_task(_make_model(stack, learner, sizes))
    try:
        # vLLM takes its weights from the bus: a tokenizer and a configuration are all it needs to start.
        await _wait_for_model_config(learner.model_path, making)
        return await train_job.train(stack, settings, [learner], heldout, making)
    finally:
        making.cancel()


async def _make_model(stack: LocalStack, learner: LearnerSettings, arguments: list[Any]) -> None:
    """Make the small model, and record what it is made of."""
    await _python(stack, "model.py", arguments)
    record_base_models(stack.directory.path, [learner])


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
