"""``lightningbus init``: write a first project to change."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import exit_on_user_error
from lightningbus.run.errors import UserError
from lightningbus.run.projects.template import list_commands, render_project

NUM_NEXT = 3
"""Number of commands that are printed; README.md of the project has more."""


class Framework(StrEnum):
    """Frameworks for the agent, by the names that `lightningbus.run.projects.template` uses."""

    openai = "openai"
    langgraph = "langgraph"
    openai_agents = "openai-agents"
    autogen = "autogen"
    node = "node"


def init(
    directory: Annotated[
        Path, typer.Argument(help="directory to write into; created if it does not exist", show_default=False)
    ] = Path(),
    framework: Annotated[Framework, typer.Option(help="framework that the agent is written in")] = Framework.openai,
) -> None:
    """Write a first project: an agent, its tasks, a run file and a README. Existing files are never overwritten.

    With openai (plain Python) the project creates its own small model, so that it trains on any machine without a GPU.
    The other frameworks use a model to download.
    """
    files = render_project(framework)
    exit_on_user_error(_write, directory, files)
    for name in files:
        print(directory / name)
    change = [] if directory.resolve() == Path.cwd() else [f"cd {shlex.quote(str(directory))}"]
    print("next:", *(f"  {command}" for command in [*change, *list_commands(framework)][:NUM_NEXT]), sep="\n")


def _write(directory: Path, files: dict[str, str]) -> None:
    """Write the files into ``directory``; raises `UserError`, before any is written, if one of them exists."""
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise UserError(f"{directory} has {', '.join(existing)} already: name another directory, such as `init first`")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UserError(f"{directory} cannot be written: {error.strerror}") from error
