"""docs/tutorial.md: its commands are ours, what they print is what it shows, and its training learns."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.run.projects.template import PLAIN, render_project
from tests.commands import ROOT, environment
from tests.deploy.commands import Commands

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
]
"""The words of each line of its shell blocks."""
FIRST, SECOND = (at for at, words in enumerate(COMMANDS) if words[1:2] == ["init"])
"""Positions at which its projects begin; the second downloads a model."""


def shape(text: str) -> str:
    """A text with ``#`` for each number, and without its line breaks: times and rewards differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(text.split()))


def test_every_command_is_ours_or_makes_the_environment(commands: Commands) -> None:
    names = [words[0] for words in COMMANDS]
    assert set(names) == {"make", "source", "lightningbus", "cd", "python"}
    assert names.count("lightningbus") == 10
    for words in COMMANDS:
        if words[0] == "lightningbus":
            commands.begun(words[1:], {})


def test_init_writes_and_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, COMMANDS[FIRST][1:])
    assert f"```text\n{done.stdout}```" in PAGE
    files = render_project(PLAIN)
    (excerpt,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert files["agent.py"].endswith(excerpt)
    (task,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    assert files["tasks.jsonl"].startswith(task)


@pytest.mark.slow
@pytest.mark.e2e
def test_the_tutorial_trains_an_agent(tmp_path: Path) -> None:
    directory, variables, printed = tmp_path, environment(), ""
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for words in COMMANDS[FIRST:SECOND]:
        if words[0] == "cd":
            directory /= words[1]
            continue
        done = subprocess.run(
            words,
            cwd=directory,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=1800,
        )
        printed += done.stdout
    results = json.loads((directory / "runs" / "first" / "results.json").read_text())
    assert results["rollouts_lost"] == 0 and results["greedy_after"] > results["greedy_before"] + 0.3
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.S):
        assert shape(block) in shape(printed), printed
