"""``lightningbus init``: write a first project to change."""

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import exit_on_user_error, run_async, run_until_signal
from lightningbus.run.errors import UserError
from lightningbus.run.pretrained.catalog import MODELS, PretrainedModel
from lightningbus.run.pretrained.folder import provide_folder
from lightningbus.run.projects.coding import CODING_AGENTS, render_coding_project
from lightningbus.run.projects.template import PLAIN, list_commands, render_project

LINK = "model"
"""Link in a project to its pretrained model."""
NUM_NEXT = 3
"""Number of commands that are printed; README.md of the project has more."""


class Framework(StrEnum):
    """Frameworks for the agent, by the names that `lightningbus.run.projects` uses."""

    openai = "openai"
    langgraph = "langgraph"
    openai_agents = "openai-agents"
    autogen = "autogen"
    node = "node"
    claude_code = "claude-code"
    codex = "codex"
    mini_swe_agent = "mini-swe-agent"
    openhands = "openhands"
    opencode = "opencode"


class Model(StrEnum):
    """Pretrained models, by the names of `lightningbus.run.pretrained.catalog`."""

    smollm2 = "smollm2"


def init(
    directory: Annotated[
        Path, typer.Argument(help="directory to write into; created if it does not exist", show_default=False)
    ] = Path(),
    framework: Annotated[Framework, typer.Option(help="framework or program that the agent is")] = Framework.openai,
    model: Annotated[
        Model | None,
        typer.Option(
            help="pretrained model that a project of openai trains: downloaded by pip and converted, once for all "
            "projects of a user [default: a small model that the project makes]",
        ),
    ] = None,
) -> None:
    """Write a first project: an agent, its tasks, a run file and a README. Existing files are never overwritten.

    With openai (plain Python) the project creates its own small model, so that it trains on any machine without a GPU.
    With --model smollm2 it trains SmolLM2-135M-Instruct, also without a GPU. The other frameworks use a model to
    download. With claude-code, codex, mini-swe-agent, openhands and opencode the project has ten little repositories
    with a bug, and hidden tests that give the reward.
    """
    pretrained = MODELS[model] if model is not None else None
    coding = CODING_AGENTS.get(framework)
    files = render_coding_project(framework) if coding is not None else render_project(framework, pretrained)
    names = [*files, *([LINK] if pretrained is not None else [])]
    exit_on_user_error(_check, directory, framework, names, pretrained)
    folder = run_async(run_until_signal(provide_folder(pretrained, _report))) if pretrained is not None else None
    exit_on_user_error(_write, directory, files, folder)
    for name in names:
        if name.count("/") < 2:
            print(directory / name)
    install = coding.install if coding is not None else ""
    commands = list_commands(framework, folder is not None, install)
    if directory.resolve() != Path.cwd():
        commands = [f"cd {shlex.quote(str(directory))}", *commands]
    print("next:", *(f"  {command}" for command in commands[:NUM_NEXT]), sep="\n")


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check(directory: Path, framework: Framework, names: list[str], pretrained: PretrainedModel | None) -> None:
    """Raise `UserError` if a file exists, or the model cannot be trained with the framework."""
    if pretrained is not None and framework != PLAIN:
        raise UserError(f"--model: {pretrained.title} cannot call tools as {framework} does: use --framework {PLAIN}")
    existing = [name for name in names if os.path.lexists(directory / name)]
    if existing:
        raise UserError(f"{directory} has {', '.join(existing)} already: name another directory, such as `init first`")


def _write(directory: Path, files: dict[str, str], model: Path | None) -> None:
    """Write the files into ``directory``, and a link to the model; an existing one is an error."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
        if model is not None:
            (directory / LINK).symlink_to(model)
    except OSError as error:
        raise UserError(f"{directory} cannot be written: {error.strerror}") from error
