"""``lightningbus demo``: the calculator agent on embedded defaults."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import require_extra, run_async, run_until_signal


def demo(
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 36,
    seed: Annotated[int, typer.Option(help="of the problems, the model and the order of tasks")] = 0,
    runs: Annotated[Path, typer.Option(help="where run directories are made")] = Path("runs"),
) -> None:
    """Train the calculator agent on the embedded defaults, and report how much better it got."""
    with require_extra("demo"):  # the agent's client, and the picture, which comes last
        importlib.import_module("matplotlib")
        importlib.import_module("openai")
    from lightningbus.run.jobs.demo import DemoConfig
    from lightningbus.run.jobs.demo import run_demo as play

    run_async(run_until_signal(play(DemoConfig(steps=steps, seed=seed), runs)))
