"""``lightningbus env``: write tasks and a run file for an environment of another library."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import exit_on_user_error


def env(
    environment: Annotated[
        str,
        typer.Argument(
            help="environment as KIND:NAME; kinds are verifiers, gymnasium, openenv, nemo-gym and harbor",
            metavar="KIND:NAME",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="directory to write [default: environments/NAME]")] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="Python interpreter that has the environment installed [default: the current one]"),
    ] = None,
    model_path: Annotated[Path, typer.Option(help="model directory to train, as written into the run file")] = Path(
        "model"
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="most training tasks to write [default: all]")] = None,
    heldout: Annotated[
        int,
        typer.Option(
            min=1, help="most held-out tasks to write; a tenth of all tasks if the environment has none of its own"
        ),
    ] = 100,
    arg: Annotated[
        list[str] | None,
        typer.Option(help="argument of the environment, e.g. num_tasks=4 or taskset.level=hard; repeatable"),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option(
            "--env", help="environment variable for its processes, NAME or NAME=VALUE, e.g. HF_HOME; repeatable"
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="concurrent rollouts, in one process")] = 16,
    path: Annotated[
        Path | None,
        typer.Option(
            help="directory of modules that the environment imports and that are not installed",
            exists=True,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Write the tasks of an environment and a run file that trains on them; the environment itself is not changed."""
    from lightningbus.run.projects import environment_directory as directories
    from lightningbus.run.projects.harbor_directory import write_harbor

    kind, name = exit_on_user_error(directories.parse_name, environment)
    arguments = exit_on_user_error(directories.parse_arguments, arg or ())
    directory = out or Path("environments") / directories.as_file_name(name)
    spec = directories.EnvironmentSpec(
        kind, name, arguments, python or Path(sys.executable), path, concurrency, variable or ()
    )
    write = write_harbor if kind == directories.HARBOR else directories.write_environment
    num_train, num_heldout = exit_on_user_error(write, spec, directory, model_path, limit, heldout)
    print(f"{num_train} tasks and {num_heldout} held-out ones in {directory}")
    print(f"lightningbus train -c {directory / directories.RUN_FILE}")
