"""Commands that start something: a node, learner or runner by itself, all of a run file, or the demo."""

import asyncio
import importlib
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.task_file import TaskFileError
from common.aio import Interrupted, run_unless
from lightningbus.cli.options import (
    BusOption,
    HealthOption,
    SettingsOption,
    extra,
    finish,
    or_fail,
    settings_of,
    with_key,
)
from lightningbus.run.discovery import place
from lightningbus.run.role_process import UserError, on_stop_signals, run_role


def inference(
    model_path: Annotated[Path | None, typer.Option(help="model directory: architecture and tokenizer")] = None,
    bus: BusOption = None,
    model: Annotated[str | None, typer.Option(help="name agents ask for [default: policy]")] = None,
    port: Annotated[int | None, typer.Option(help="port of the gateway [default: a free one]")] = None,
    host: Annotated[str | None, typer.Option(help="address of the gateway [default: 127.0.0.1]")] = None,
    advertise: Annotated[str | None, typer.Option(help="URL runners reach it at [default: http://host:port]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run vLLM behind a gateway, and swap each new weight version in while requests are in flight."""
    with extra("inference"):
        from inference import node
        from inference.engine import vllm_server
        from inference.settings import InferenceSettings

    given = {"model_path": model_path, "model": model, "port": port, "host": host, "advertise": advertise}
    checked = settings_of(InferenceSettings, settings, **given, health=health)
    at = or_fail(place, bus, "inference")
    run_role(at, "inference", node.run, with_key(checked, at), vllm_server.EngineError)


def learner(
    model_path: Annotated[Path | None, typer.Option(help="model directory to start from")] = None,
    tasks: Annotated[Path | None, typer.Option(help="JSONL of training tasks to dispatch")] = None,
    steps: Annotated[int | None, typer.Option(help="training steps [default: 100]")] = None,
    run: Annotated[str | None, typer.Option(help="name of the run [default: run]")] = None,
    bus: BusOption = None,
    checkpoints: Annotated[Path | None, typer.Option(help="where to keep them [default: runs/checkpoints]")] = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Train on finished rollouts with verl, and publish every step as a weight version.

    Over several GPUs or processes: torchrun --nproc-per-node 2 -m lightningbus learner ...
    """
    with extra("learner"):
        from learner import errors
        from learner import learner as room
        from learner.checkpointing import checkpoint
        from learner.settings.learner import LearnerSettings
        from learner.training import distributed

    given = {"model_path": model_path, "tasks": tasks, "steps": steps, "run": run, "checkpoints": checkpoints}
    checked = settings_of(LearnerSettings, settings, **given, health=health)
    if distributed.is_follower():
        room.follow(checked)
        return
    expected = (errors.LearnerError, checkpoint.CheckpointError, TaskFileError)
    run_role(or_fail(place, bus, "learner"), "learner", room.run, checked, *expected)


def runner(
    agent: Annotated[str | None, typer.Option(help="the agent as module:function, sync or async")] = None,
    python: Annotated[Path | None, typer.Option(help="interpreter it runs in [default: this one]")] = None,
    path: Annotated[Path | None, typer.Option(help="directory it runs in [default: here]")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-n", help="rollouts at once [default: 4]")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="any program instead of a Python agent, as one would type it")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="reward function as module:function(input, result)")] = None,
    name: Annotated[str | None, typer.Option(help="agent name whose tasks it takes [default: default]")] = None,
    bus: BusOption = None,
    health: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Take tasks from the bus, run the agent on each, and publish what happened."""
    from common.subprocesses import ProcessGuard
    from runners import runner as room
    from runners.agent.launcher import AgentStartError
    from runners.settings import RunnerSettings

    words = shlex.split(command) if command is not None else None
    given = {"agent": agent, "python": python, "path": path, "concurrency": concurrency, "command": words}
    checked = settings_of(RunnerSettings, settings, **given, reward=reward, name=name, health=health)
    at = or_fail(place, bus, "runner")
    ProcessGuard.enable()
    run_role(at, "runner", room.run, with_key(checked, at), AgentStartError)


def up(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file; see examples/calculator/run.yaml")],
) -> None:
    """Run all roles of a run file on this machine, under one supervisor, until Ctrl-C or the last step."""
    from lightningbus.run.settings import RunSettings, load
    from lightningbus.run.stack import up as bring_up

    finish(bring_up(or_fail(load, RunSettings, config)))


def train(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file with a learner and held-out tasks")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="load and check everything but the weights")] = False,
) -> None:
    """Run a training job to its end: held-out reward before, training, held-out reward after, figures and a picture."""
    with extra("demo"):
        importlib.import_module("matplotlib")  # the picture comes last, and is not to be what fails
    from lightningbus.run import preflight, train_job
    from lightningbus.run.settings import RunSettings, load

    settings = or_fail(load, RunSettings, config)
    job = or_fail(preflight.job, settings, str(config))

    def look() -> None:
        for found in preflight.looked_at(settings, job):
            print(found)

    if dry_run:
        or_fail(look)
        return
    finish(_to_its_end(train_job.run(settings, job)))


def demo(
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 36,
    seed: Annotated[int, typer.Option(help="of the problems, the model and the order of tasks")] = 0,
    runs: Annotated[Path, typer.Option(help="where run directories are made")] = Path("runs"),
) -> None:
    """Train the calculator agent on the embedded defaults, and report how much better it got."""
    from lightningbus.run.demo import Job
    from lightningbus.run.demo import demo as play

    finish(_to_its_end(play(Job(steps=steps, seed=seed), runs)))


async def _to_its_end(job: Coroutine[Any, Any, object]) -> None:
    """Raises `UserError` when a signal stops it."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    try:
        await run_unless(stop.wait(), job)
    except Interrupted:
        raise UserError("stopped before the end") from None
