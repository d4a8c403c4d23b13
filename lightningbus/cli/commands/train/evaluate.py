"""``lightningbus evaluate``: held-out reward and pass@k of a model, a run's version or an endpoint."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lightningbus.cli.options import require_extra, run_async, run_until_signal

if TYPE_CHECKING:
    from lightningbus.api.evaluation_result import EvaluationResult


def evaluate(
    agent: Annotated[
        str | None, typer.Argument(help="agent as module:function [default: the run file's]", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Argument(help="file of tasks, or hf:NAME [default: the run file's `eval.tasks`]", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="model directory, such as an exported one; with --url the model's name there")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint that answers: http://127.0.0.1:8000/v1")
    ] = None,
    run: Annotated[str | None, typer.Option(help="name of a run whose weight version answers")] = None,
    version: Annotated[int | None, typer.Option(help="weight version of --run [default: the newest]")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="run file; arguments and options win over it")
    ] = None,
    sampling: Annotated[
        list[str] | None, typer.Option(help="greedy or sampled; repeatable [default: the run file's, else both]")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="sampled answers to each task [default: the run file's, else 2]")
    ] = None,
    pass_reward: Annotated[
        float | None,
        typer.Option(help="reward from which on an answer has passed, for pass@k [default: the run file's, else 1]"),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="with --run: name that keeps these rollouts apart [default: date and time]")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="without --run: name of the evaluation's run directory [default: evaluation]")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="rollouts at once of each runner")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="seconds without the end of a rollout after which it is given up")
    ] = None,
) -> None:
    """Answer tasks with a model directory, an endpoint or a version of a run; print mean reward and pass@k.

    An engine is started for a model directory, and for a run that has ended.
    """
    with require_extra("store"):
        from lightningbus.api.evaluation_job import aevaluate

    settings: dict[str, Any] = {
        "samples": samples, "pass_reward": pass_reward, "name": name, "concurrency": concurrency, "deadline": deadline,
    }  # fmt: skip
    work = aevaluate(
        agent,
        tasks,
        model=model,
        url=url,
        run=run,
        version=version,
        sampling=sampling or None,
        label=label,
        settings=config,
        **{option: value for option, value in settings.items() if value is not None},
    )
    report(run_async(run_until_signal(work)))


def report(result: "EvaluationResult") -> None:
    """Print the table to the terminal, and the figures as JSON to a program that reads standard output."""
    print(result, file=sys.stderr)
    if not sys.stdout.isatty():
        print(json.dumps(result.to_figures()), flush=True)
