"""The coding agent: repositories with a bug, hidden tests, and mini-swe-agent as it is."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples.endpoint import EXAMPLES, Endpoint, make_problems, module, talk
from tests.examples.math_cases import NAMES_US, OURS, imports_of

CODER = EXAMPLES / "coding_agent"
DRIVER = """
import agent, json, os, sys
os.chdir(sys.argv[1])
print(json.dumps([agent.solve(task) for task in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("coding") / "tasks"
    done = make_problems("coding_agent", path)
    assert done.returncode == 0, done.stderr
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open()]


def grade(task: dict[str, Any], repository: Path, out: Path) -> float:
    """The share of hidden tests that pass, as a runner grades a workspace."""
    fields = task["input"]["workspace"]["grade"]
    shutil.copytree(out / "workspaces" / fields["files"], repository, dirs_exist_ok=True)
    result = repository / "result.json"
    command = [sys.executable, *fields["command"][1:]]
    subprocess.run(command, cwd=repository, env={**os.environ, "RESULT_FILE": str(result)}, check=True)
    share: float = json.loads(result.read_text())["tests_passed"]
    return share


def copy_repository(task: dict[str, Any], out: Path, to: Path) -> Path:
    return Path(shutil.copytree(out / "workspaces" / task["input"]["workspace"]["directory"], to))


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    for name in ("agent.py", "data.py", "repairs.py"):
        assert not imports_of(CODER / name) & OURS
    assert not NAMES_US.search((CODER / "agent.py").read_text())


def test_each_kind_of_bug_fails_its_hidden_test_and_its_repair_passes(out: Path, tmp_path: Path) -> None:
    train, heldout = (read_lines(out / f"{name}.jsonl") for name in ("train", "heldout"))
    tasks = {task["id"]: task for task in train + heldout}
    assert len(tasks) == len(train) + len(heldout) == 180
    repairs = {(repair.kind, repair.word): repair for repair in module("coding_agent", "repairs").make_repairs()}
    assert len(repairs) == 13, "one repair of each word"
    for repair in repairs.values():
        task = tasks[repair.name]
        repository = copy_repository(task, out, tmp_path / repair.name)
        file = repository / repair.file
        subprocess.run([sys.executable, "-c", f"import {file.stem}"], cwd=repository, check=True)  # leaves bytecode
        assert grade(task, repository, out) == 0, repair
        before = file.stat().st_mtime_ns
        subprocess.run(repair.command, shell=True, cwd=repository, check=True)
        os.utime(file, ns=(before, before))  # as within one second, which is what bytecode knows
        assert grade(task, repository, out) == 1, repair


@pytest.mark.long
async def test_demonstrations_are_what_the_program_sends(
    environment: Callable[[str], Path], out: Path, tmp_path: Path
) -> None:
    folder = environment("coding_agent")
    chats = read_lines(out / "chats.jsonl")[:2]
    by_prompt = {chat["messages"][1]["content"]: chat["messages"] for chat in chats}

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        chat = by_prompt[messages[1]["content"]]
        assert messages == chat[: len(messages)], "as it was demonstrated"
        return chat[len(messages)]

    tasks = read_lines(out / "train.jsonl")[:2]
    for task in tasks:
        repository = copy_repository(task, out, tmp_path / task["id"])
        async with Endpoint(answer).serving() as endpoint:
            home = {"HOME": str(tmp_path), "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any"}
            command = [str(folder / ".venv/bin/python"), "-c", DRIVER, str(repository)]
            (result,) = await talk(command, folder, {**os.environ, **home}, [task["input"]])
        assert result["status"] == 0 and len(endpoint.requests) == 3, result
        assert grade(task, repository, out) == 1
