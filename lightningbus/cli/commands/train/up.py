"""``lightningbus up``: run all roles of a run file."""

from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    exit_on_user_error,
    run_async,
)


def up(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file, such as examples/calculator/run.yaml")],
) -> None:
    """Run all roles of a run file on this machine, under one supervisor, until Ctrl-C or the last step."""
    from lightningbus.run.processes.stack import up as bring_up
    from lightningbus.run.settings.run_file import load_run_settings

    run_async(bring_up(exit_on_user_error(load_run_settings, config)))
