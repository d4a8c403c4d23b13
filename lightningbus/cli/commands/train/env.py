"""``lightningbus env``: environments of others, as tasks and a run file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import exit_on_user_error


def env(
    environment: Annotated[
        str,
        typer.Argument(
            help="KIND:NAME; kinds are verifiers, gymnasium, openenv, nemo-gym and harbor", metavar="KIND:NAME"
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="directory to write [default: environments/NAME]")] = None,
    python: Annotated[
        Path | None, typer.Option(help="interpreter the environment is installed in [default: the one running this]")
    ] = None,
    model_path: Annotated[Path, typer.Option(help="model directory that the run file trains")] = Path("model"),
    limit: Annotated[int | None, typer.Option(min=1, help="tasks to train on, at most [default: all]")] = None,
    heldout: Annotated[
        int, typer.Option(min=1, help="held-out tasks, at most; a tenth of all if the environment has none of its own")
    ] = 100,
    arg: Annotated[
        list[str] | None,
        typer.Option(help="argument of the environment, as num_tasks=4 or taskset.level=hard; repeat"),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option("--env", help="variable its processes find, NAME or NAME=VALUE, such as HF_HOME; repeat"),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="rollouts at once, in one process")] = 16,
    path: Annotated[
        Path | None, typer.Option(help="directory of modules that are not installed", exists=True, file_okay=False)
    ] = None,
) -> None:
    """Write the tasks of an environment and a run file that trains on them; the environment itself stays as it is."""
    from lightningbus.run.projects import environment_directory as directories

    kind, name = exit_on_user_error(directories.parse_name, environment)
    arguments = exit_on_user_error(directories.parse_arguments, arg or ())
    directory = out or Path("environments") / directories.as_file_name(name)
    spec = directories.EnvironmentSpec(
        kind, name, arguments, python or Path(sys.executable), path, concurrency, variable or ()
    )
    num_train, num_heldout = exit_on_user_error(
        directories.write_environment, spec, directory, model_path, limit, heldout
    )
    print(f"{num_train} tasks and {num_heldout} held-out ones in {directory}")
    print(f"lightningbus train -c {directory / directories.RUN_FILE}")
