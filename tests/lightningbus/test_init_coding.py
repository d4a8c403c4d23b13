"""``lightningbus init`` of coding agents: repositories with a bug, whose hidden tests tell a repair from none."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lightningbus.bus.client import Bus
from lightningbus.cli.app import app
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.projects.coding import CODING_AGENTS
from lightningbus.run.projects.repairs import REPAIRS, Repair
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.coding_sessions import CLIS
from tests.runners.conftest import ended, running, task
from tests.runners.session_engine import SessionEngine, Step, call
from tests.runners.test_workspaces import BUBBLEWRAP


def write_project(name: str, directory: Path) -> Path:
    """A project as `init` writes it."""
    done = CliRunner().invoke(app, ["init", str(directory), "--framework", name])
    assert done.exit_code == 0, done.output
    words = [shlex.split(line) for line in done.stdout[done.stdout.index("next:") :].splitlines()[1:]]
    assert ["lightningbus", "train", "-c", "run.yaml"] in words and len(words) == 3
    return directory


@pytest.mark.parametrize("name", CODING_AGENTS)
def test_a_project_is_complete_and_its_settings_are_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_project(name, tmp_path / "coder"))
    settings = validate_settings(RunSettings, yaml.safe_load(Path("run.yaml").read_text()), "run.yaml")
    parse_job(settings, "run.yaml")
    (runner,) = settings.runners
    assert runner.workspace is not None and runner.working_dir == Path("agent") and Path("agent/agent.py").exists()
    assert (len(load_tasks(Path("tasks.jsonl"))), len(load_tasks(Path("heldout.jsonl")))) == (8, 2)
    assert "$" not in Path("README.md").read_text() and CODING_AGENTS[name].install in Path("README.md").read_text()


def grade(directory: Path, source: str, repair: Repair) -> dict[str, float]:
    """Run the hidden tests of a project on a module."""
    (directory / f"{repair.name}.py").write_text(source)
    result = directory / "result.json"
    environment = {"RESULT_FILE": str(result), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-I", "hidden/run_hidden.py"], cwd=directory, env=environment, check=True)
    rewards: dict[str, float] = json.loads(result.read_text())
    return rewards


@pytest.mark.integration
@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.name)
def test_hidden_tests_pass_once_the_bug_is_mended_and_code_that_ends_early_passes_none(
    repair: Repair, tmp_path: Path
) -> None:
    project = write_project("codex", tmp_path / "coder")
    directory = project / "workspaces" / "hidden" / repair.name
    assert repair.source != repair.right
    assert grade(directory, repair.right, repair) == {"tests_passed": 1.0, "solved": 1.0}
    assert grade(directory, repair.source, repair) == {"tests_passed": 0.0, "solved": 0.0}, "untouched"
    assert grade(directory, "import os\nos._exit(0)\n", repair) == {"tests_passed": 0.0, "solved": 0.0}


@pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP)
async def test_a_rollout_of_a_project_is_graded_in_its_sandbox(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is a stand-in, started as the real one is, that mends the first task and reads what it can see."""
    monkeypatch.chdir(write_project("codex", tmp_path / "coder"))
    program = Path("agent/node_modules/.bin/codex")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nls ..; cat /workspace/hidden/*; sed -i s_//_/_ averages.py; true\n")
    program.chmod(0o755)
    settings = yaml.safe_load(Path("run.yaml").read_text())["runners"][0]
    tasks = load_tasks(Path("tasks.jsonl"))[:2]
    async with running(bus, **{**settings, "concurrency": 1}):
        for each in tasks:
            await TaskPublisher(bus).publish_task(task(id=each.id, input=each.input))
        batches = await ended(bus, 2)
    rewards: dict[str, Any] = {batch.task_id: batch.end and batch.end.rewards for batch in batches}
    assert rewards == {
        "averages": {"tests_passed": 1.0, "solved": 1.0},
        "pages": {"tests_passed": 0.0, "solved": 0.0},
    }, [batch.end for batch in batches]


@pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP)
@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode"])
async def test_a_program_that_fails_is_an_error_with_its_last_lines(
    name: str, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that the installed version does not know ends it before its first call."""
    monkeypatch.chdir(write_project(name, tmp_path / "coder"))
    program = Path("agent/node_modules/.bin") / {"claude-code": "claude"}.get(name, name)
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho starting; echo 'error: unknown option --model' >&2; exit 2\n")
    program.chmod(0o755)
    settings = yaml.safe_load(Path("run.yaml").read_text())["runners"][0]
    (first, *_) = load_tasks(Path("tasks.jsonl"))
    async with running(bus, **{**settings, "concurrency": 1}):
        await TaskPublisher(bus).publish_task(task(id=first.id, input=first.input))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "agent_error" and batch.end.reward is None
    assert "ended with 2" in batch.end.error and "error: unknown option --model" in batch.end.error


REPAIR = "sed -i s_//_/_ averages.py"
SESSIONS = {
    "codex": [call("exec_command", cmd=REPAIR)],
    "claude-code": [call("Bash", command=REPAIR, description="mends it")],
    "opencode": [call("bash", command=REPAIR, description="mends it")],
}
PYTHON_SESSIONS = {
    "mini-swe-agent": [
        call("bash", command=REPAIR),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ],
    "openhands": [call("terminal", command=REPAIR), call("finish", message="done")],
}
PACKAGES = CLIS / "node_modules"
VENVS = {"mini-swe-agent": CLIS / "mini", "openhands": CLIS / "openhands"}


async def repair_first(bus: Bus, steps: list[Step]) -> None:
    """Let a program, which is installed where its project has it, mend the first task's repository."""
    settings = yaml.safe_load(Path("run.yaml").read_text())["runners"][0]
    homes = [Path(venv, "bin", "python").resolve().parent.parent for venv in VENVS.values() if venv.is_dir()]
    binds = [str(path) for path in (CLIS, *homes) if not path.is_relative_to("/usr")]
    settings |= {"concurrency": 1, "workspace": {**settings["workspace"], "binds": binds}}
    (first, *_) = load_tasks(Path("tasks.jsonl"))
    async with SessionEngine(steps).serving(bus) as engine, running(bus, **settings):
        await TaskPublisher(bus).publish_task(task(id=first.id, input=first.input))
        (batch,) = await ended(bus)
        assert isinstance(engine, SessionEngine)
        assert not engine.unknown, engine.tools
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert batch.end.rewards == {"tests_passed": 1.0, "solved": 1.0}, batch.end
    assert batch.end.usage.num_calls >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SESSIONS)
async def test_the_real_program_mends_a_repository_in_its_sandbox(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not (PACKAGES / next(iter(CODING_AGENTS[name].packages))).is_dir():
        pytest.skip("CODING_CLIS names no directory with the program")
    monkeypatch.chdir(write_project(name, tmp_path / "coder"))
    Path("agent/node_modules").symlink_to(PACKAGES)
    await repair_first(bus, SESSIONS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON_SESSIONS)
async def test_the_real_python_program_mends_a_repository_in_its_sandbox(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not VENVS[name].is_dir():
        pytest.skip("CODING_CLIS names no directory with the program")
    monkeypatch.chdir(write_project(name, tmp_path / "coder"))
    Path("agent/.venv").symlink_to(VENVS[name])
    await repair_first(bus, PYTHON_SESSIONS[name])
