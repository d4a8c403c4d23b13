"""skills/lightningbus: an assistant that runs its commands in order has a trained model."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, environment
from tests.deploy.commands import Commands

SKILL = ROOT / "skills" / "lightningbus" / "SKILL.md"
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", SKILL.read_text(), re.S)
    for line in block.splitlines()
]
"""The words of each line of its shell blocks."""
OF_THE_CLONE = ("make", "source")


def test_its_head_names_it_and_says_when_to_use_it() -> None:
    _, head, _ = SKILL.read_text().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields.keys() == {"name", "description"} and fields["name"] == SKILL.parent.name
    assert len(fields["description"]) <= 1024


def test_every_command_is_ours_and_every_file_is_there(commands: Commands) -> None:
    for words in COMMANDS:
        if words[0] == "lightningbus":
            commands.begun(words[1:], {})
        else:
            assert words[0] in (*OF_THE_CLONE, "cd", "python")
    pages = re.findall(
        r"`(docs/[\w/.-]+\.md)`|\]\(([\w/.-]+\.md)\)", SKILL.read_text() + (ROOT / "AGENTS.md").read_text()
    )
    assert pages and all((ROOT / (page or linked)).is_file() for page, linked in pages)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_its_commands_train_an_agent(tmp_path: Path) -> None:
    directory, variables = tmp_path, environment()
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for words in COMMANDS:
        if words[0] == "cd":
            directory /= words[1]
        elif words[0] not in OF_THE_CLONE:
            done = subprocess.run(
                words, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=1800,
            )  # fmt: skip
            assert not done.returncode or words[1] == "doctor", (words, done.stdout[-3000:])
    results = json.loads((directory / "runs" / "first" / "results.json").read_text())
    assert results["rollouts_lost"] == 0 and results["greedy_after"] > results["greedy_before"]
    assert (directory / "rl-model" / "config.json").is_file()
