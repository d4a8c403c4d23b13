"""``lightningbus --help``: commands by section with an example each, quick to show, completed by the shell."""

import inspect
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from docs.reference.settings import SECTIONS
from lightningbus.cli.app import COMMANDS, ROLES, app
from lightningbus.cli.lazy_group import Command
from tests.commands import environment
from tests.polling import HANG_SECONDS

HEAVY = (
    "aiohttp", "chdb", "clickhouse_connect", "google", "matplotlib", "msgspec", "nats", "numpy", "opentelemetry",
    "pyarrow", "ray", "rich", "structlog", "torch", "transformers", "uvloop", "verl", "vllm", "yaml",
)  # fmt: skip
"""What `--help` needs none of; each takes a tenth of a second and more to import."""


def lightningbus(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """``lightningbus …``, with the names of all imported modules on the last line of standard error."""
    script = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "from lightningbus.cli.app import app; app(prog_name='lightningbus')"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False, env={**environment(), **variables},
    )  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "variables", "part"),
    [
        (["--help"], {}, "Run one role by itself:"),
        (["--version"], {}, "lightningbus 0."),
        (
            [],
            {"_LIGHTNINGBUS_COMPLETE": "complete_bash", "COMP_WORDS": "lightningbus wei", "COMP_CWORD": "1"},
            "weights",
        ),
    ],
    ids=["help", "version", "completion"],
)
def test_help_version_and_completion_import_no_room(arguments: list[str], variables: dict[str, str], part: str) -> None:
    done = lightningbus(*arguments, **variables)
    assert part in done.stdout, done.stderr
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert "typer" in loaded
    assert sorted(loaded & set(HEAVY)) == []


@pytest.mark.integration
def test_a_shell_completes_commands_subcommands_and_options() -> None:
    def complete(line: str) -> list[str]:
        variables = {"_LIGHTNINGBUS_COMPLETE": "complete_bash", "COMP_WORDS": line}
        return lightningbus(**variables, COMP_CWORD=str(line.count(" "))).stdout.split()

    assert complete("lightningbus re") == ["report", "regrade"]
    assert complete("lightningbus weights re") == ["revoke", "repair"]
    assert "--dry-run" in complete("lightningbus train --d")


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell: str) -> None:
    script = lightningbus(_LIGHTNINGBUS_COMPLETE=f"source_{shell}").stdout
    assert "_LIGHTNINGBUS_COMPLETE" in script and f"complete_{shell}" in script
    if shell == "bash":
        subprocess.run(["bash", "-n", "-c", script], check=True, env=os.environ)


def test_help_shows_each_command_in_its_section_with_its_example() -> None:
    lines = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output.splitlines()
    sections = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert sections == ["Options", *dict.fromkeys(row.section.title for row in COMMANDS)]
    for row in COMMANDS:
        assert any(line.split() == f"{row.name} {row.summary}".split() for line in lines), row.name
        assert any(line.strip() == f"$ {row.example}" for line in lines), row.example


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_the_example_of_a_command_is_right_and_ends_its_help(row: Any) -> None:
    group: Any = typer.main.get_group(app)
    program, name, *words = shlex.split(row.example)
    assert (program, name) == ("lightningbus", row.name)
    command = row.load()
    help_text = CliRunner().invoke(app, [row.name, "--help"]).output
    assert " ".join(help_text.split()).endswith(f"Example: {row.example}")
    context = command.make_context(row.name, words, parent=typer.Context(group))
    if words and words[0] in getattr(command, "commands", {}):
        subcommand = command.commands[words[0]]
        context = subcommand.make_context(words[0], words[1:], parent=context)
    assert not [word for word in context.args if row.takes_settings or word.startswith("-")]


def test_every_command_that_prints_a_table_prints_json_too() -> None:
    tables = {}
    for row in COMMANDS:
        command = row.load()
        for name, leaf in {row.name: command, **getattr(command, "commands", {})}.items():
            source = inspect.getsource(leaf.callback) if leaf.callback is not None else ""
            if "print_result(" in source or "_table(" in source:
                tables[row.name, name] = "--json" in {option for entry in leaf.params for option in entry.opts}
    assert len(tables) >= 7 and all(tables.values()), tables


@pytest.mark.parametrize("row", [row for row in COMMANDS if row.section is ROLES and row.name != "bus"])
def test_options_of_a_role_have_the_names_of_its_settings(row: Command) -> None:
    settings = SECTIONS["runners" if row.name == "runner" else row.name]
    options = {parameter.name for parameter in row.load().params} - {"help"}
    others = {"bus", "settings", "dry_run", "ranks", "gpu_memory", "gpu_tflops"}  # no fields of the settings
    assert options - others <= set(settings.model_fields)
