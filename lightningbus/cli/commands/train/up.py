"""``lightningbus up``: run all roles of a run file."""

from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    exit_on_user_error,
    run_async,
)
from lightningbus.run.errors import exit_with


def up(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="run to start again by its own settings, by name or directory"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="run file, such as examples/calculator/run.yaml; with NAME it wins over the run's own settings",
        ),
    ] = None,
) -> None:
    """Run all roles of a run file on this machine, under one supervisor, until Ctrl-C or the last step."""
    from lightningbus.run.processes.stack import up as bring_up
    from lightningbus.run.run_directory.recorded_settings import load_named_run
    from lightningbus.run.settings.hub_models import find_cached_models
    from lightningbus.run.settings.run_file import load_run_settings

    if name is not None:
        run_async(bring_up(exit_on_user_error(load_named_run, name, config)))
    elif config is not None:
        run_async(bring_up(find_cached_models(exit_on_user_error(load_run_settings, config))))
    else:
        exit_with("give a run file by -c, or the name of a run")
