"""``lightningbus runner``: run an agent on tasks of the bus."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    BusOption,
    HealthOption,
    SettingsOption,
    exit_on_user_error,
    load_settings,
    with_api_key,
)
from lightningbus.run.errors import exit_with
from lightningbus.run.processes.role_process import run_role
from lightningbus.run.run_directory.discovery import discover_bus


def runner(
    context: typer.Context,
    entrypoint: Annotated[str | None, typer.Option(help="agent function as module:function, sync or async")] = None,
    python_executable: Annotated[
        Path | None, typer.Option(help="Python interpreter that runs the agent [default: the current one]")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="directory that the agent runs in [default: the current one]")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-n", help="concurrent rollouts [default: 4 at first, then 1 to 256 as it adapts]"
        ),
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="command line of a program to run instead of a Python agent")
    ] = None,
    reward_fn: Annotated[str | None, typer.Option(help="reward function as module:function(input, result)")] = None,
    agent_name: Annotated[
        str | None, typer.Option(help="name of the agent whose tasks the runner takes [default: default]")
    ] = None,
    bus: BusOption = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Take tasks from the bus, run the agent on each, and publish the rollouts.

    Every field of the runner's settings is an option too, such as --memory-limit-gib 2.
    """
    from lightningbus.common.processes.subprocesses import ProcessGuard
    from lightningbus.runners import runner as role
    from lightningbus.runners.agent.launcher import AgentStartError
    from lightningbus.runners.settings import RunnerSettings

    words = shlex.split(command) if command is not None else None
    options = {
        "entrypoint": entrypoint,
        "python_executable": python_executable,
        "working_dir": working_dir,
        "concurrency": concurrency,
        "command": words,
        "reward_fn": reward_fn,
        "agent_name": agent_name,
        "health_address": health_address,
    }
    checked = load_settings(RunnerSettings, "runner", settings, context.args, **options)
    try:
        checked.check_agent()
    except ValueError as error:
        exit_with(f"{settings or 'settings'}: {error}")
    at = exit_on_user_error(discover_bus, bus, "runner")
    ProcessGuard.enable()
    run_role(at, "runner", role.run, with_api_key(checked, at), AgentStartError)
