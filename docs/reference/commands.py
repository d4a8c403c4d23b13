"""The commands as the tables of docs/cli.md, from their own help texts."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from lightningbus.cli.app import app
from lightningbus.cli.lazy_group import LazyGroup


def render_commands() -> str:
    """Return a section for each command: its help, its arguments and its options."""
    return "\n".join(_sections("lightningbus", typer.main.get_command(app)))


def _sections(path: str, command: Any, example: str = "") -> Iterator[str]:
    yield from (f"## `{path}`", "", _plain(command.help or ""), "")
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    if parameters:
        yield from ("| option | default | meaning |", "|---|---|---|")
        yield from (_row(parameter) for parameter in parameters)
        yield ""
    if example:
        yield from (f"Example: `{example}`", "")
    if isinstance(command, LazyGroup):
        for row in command.table:
            yield from _sections(f"{path} {row.name}", row.load(), row.example)
    elif isinstance(command, TyperGroup):
        for name in command.commands:
            yield from _sections(f"{path} {name}", command.commands[name])


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if isinstance(parameter, TyperArgument):
        names = f"`{str(parameter.name).upper()}`"
    default = parameter.default
    is_shown = isinstance(parameter, TyperOption) and not callable(default) and default not in (None, False, "", ())
    stated = f"`{default}`" if is_shown else "required" if parameter.required else ""
    return f"| {names} | {stated} | {_plain(parameter.help or '')} |"


def _plain(text: str) -> str:
    """One paragraph a line, as Markdown takes it."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraphs).replace("|", "\\|")
