"""A group of commands whose modules are imported on use: `--help` and completion load none of them."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


def _name_with_dashes(name: str) -> str:
    return name.replace("_", "-")


ANY_SETTING = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "token_normalize_func": _name_with_dashes,
}
"""Context settings of a role's command: any field of its settings is an option too, see `options.load_settings`."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of `--help`; its commands are modules of `lightningbus.cli.commands.PACKAGE`."""

    package: str
    title: str


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table of commands; its module, called ``name``, has `app` or a function of that name."""

    name: str
    section: Section
    summary: str
    example: str
    takes_settings: bool = False

    def load(self) -> Any:
        """Import the command's module, and return the command with its options."""
        module = importlib.import_module(f"lightningbus.cli.commands.{self.section.package}.{self.name}")
        command: Any
        if hasattr(module, "app"):
            command = typer.main.get_group(module.app)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            settings = ANY_SETTING if self.takes_settings else None
            alone.command(self.name, context_settings=settings)(getattr(module, self.name))
            command = typer.main.get_command(alone)
        command.name, command.epilog = self.name, f"Example: {self.example}"
        return command


class LazyGroup(TyperGroup):
    """The commands of ``table``: by their summaries until one is called."""

    table: ClassVar[Sequence[Command]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for row in self.table:
            self.add_command(TyperCommand(row.name, callback=None, help=row.summary))

    def load(self, name: str) -> Any:
        """Load a command by its name; raises `StopIteration` for an unknown one."""
        return next(row for row in self.table if row.name == name).load()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that the arguments begin with; raises as `TyperGroup` for an unknown one."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, self.load(known.name) if known is not None and known.name else None, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by section, each with an example below it."""
        for section in dict.fromkeys(row.section for row in self.table):
            rows = [row for row in self.table if row.section == section]
            with formatter.section(section.title):
                formatter.write_dl(
                    [line for row in rows for line in ((row.name, row.summary), ("", f"$ {row.example}"))]
                )
