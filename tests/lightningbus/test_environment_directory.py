"""`lightningbus env` where the environment is a stand-in module: what it writes, and what it says of wrong input."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightningbus.run.errors import UserError
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.projects.environment_directory import (
    EnvironmentSpec,
    as_file_name,
    find_error,
    make_agent,
    parse_arguments,
    parse_name,
    render_run_file,
)
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from tests.lightningbus.test_cli import run, says

GYMNASIUM = """
import os, sys

class error:
    class Error(Exception): ...

class spaces:
    class Text: ...
    class Discrete: ...

class Environment:
    action_space, render_mode, metadata = spaces.Text(), None, {}
    def close(self): ...

def make(name, **arguments):
    print("Map: 0%\\nwarning: levels are few", file=sys.stderr)
    if name == "bars":
        raise error.Error(f"bars are off: {os.environ['HF_DATASETS_DISABLE_PROGRESS_BARS']}")
    if name != "known":
        raise error.Error(f"{name} is not registered")
    return Environment()
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory with a module that loads as Gymnasium does."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "gymnasium.py").write_text(GYMNASIUM)
    return tmp_path / "modules"


@pytest.mark.integration
def test_a_directory_is_written_whole_or_not_at_all(modules: Path, tmp_path: Path) -> None:
    options = ["--path", modules, "--out", "out", "--heldout", 2]
    sentence = says(run("env", "gymnasium:unknown", *options, cwd=tmp_path))
    assert sentence.startswith("gymnasium:unknown cannot be used in ") and "unknown is not registered" in sentence
    sentence = says(run("env", "gymnasium:known", *options, cwd=tmp_path))
    assert sentence.endswith("it makes tasks without end: say how many by --limit")
    sentence = says(run("env", "gymnasium:known", *options, "--arg", "turns=3", cwd=tmp_path))
    assert "no such argument: turns; known are actions, make, max_tokens, max_turns, prompt" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["modules"], "nothing half made stays"
    done = run("env", "gymnasium:known", *options, "--limit", 3, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0, "3 tasks and 2 held-out ones in out\nlightningbus train -c out/run.yaml\n"
    ), done.stderr  # fmt: skip
    assert done.stderr.count("levels are few") == 1 and "Map" not in done.stderr, "its warnings, once, and nothing else"
    tasks = [json.loads(line) for line in (tmp_path / "out" / "tasks.jsonl").read_text().splitlines()]
    heldout = [json.loads(line) for line in (tmp_path / "out" / "heldout.jsonl").read_text().splitlines()]
    assert [task["input"] for task in tasks] == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert not {str(task) for task in tasks} & {str(task) for task in heldout}
    assert says(run("env", "gymnasium:known", *options, cwd=tmp_path)) == "out is there already: choose another --out"


@pytest.mark.integration
@pytest.mark.parametrize(("options", "value"), [((), "1"), (("--env", "HF_DATASETS_DISABLE_PROGRESS_BARS=0"), "0")])
def test_progress_bars_of_datasets_are_off_unless_they_are_wanted(
    modules: Path, tmp_path: Path, options: tuple[str, ...], value: str
) -> None:
    done = run("env", "gymnasium:bars", "--path", modules, "--out", "out", *options, cwd=tmp_path)
    assert says(done).endswith(f"bars are off: {value}")


def test_a_run_file_is_a_training_job() -> None:
    spec = EnvironmentSpec("verifiers", "owner/math-v1", {}, Path("py"), Path("/m"), 4, ["HF_HOME", "A=b"])
    fields: dict[str, Any] = yaml.safe_load(
        render_run_file(spec, Path("out"), Path("models/small"), make_agent(spec, Path("out")))
    )
    settings = validate_settings(RunSettings, fields, "run.yaml")
    job = parse_job(settings, "run.yaml")
    assert (settings.name, job.learner.tasks, job.eval.tasks) == (
        "out", Path("out/tasks.jsonl"), Path("out/heldout.jsonl")
    )  # fmt: skip
    (runner,) = settings.runners
    assert runner.env == ["PYTHONPATH=/m", "HF_HOME", "A=b"]
    assert (runner.concurrency, runner.max_concurrent_per_process) == (4, 4)


@pytest.mark.parametrize(
    ("name", "file_name"),
    [("owner/math", "math"), ("echo.server.app:app", "echo-server-app-app"), ("http://h:80/", "h-80"), ("é", "-")],
)
def test_a_run_is_named_after_its_environment(name: str, file_name: str) -> None:
    assert as_file_name(name) == file_name


def test_arguments_are_json_with_levels() -> None:
    words = ["num_tasks=4", "taskset.level=hard", "taskset.words=[1, 2]", "text=a=b"]
    assert parse_arguments(words) == {"num_tasks": 4, "taskset": {"level": "hard", "words": [1, 2]}, "text": "a=b"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["a"], "'a' is not of the form key=value"), (["a=1", "a.b=2"], "'a.b' has a level that has a value already")],
)
def test_a_wrong_argument_is_named(words: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        parse_arguments(words)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gsm8k", "not of the form KIND:NAME"), ("verifier:gsm8k", "no kind of environment: did you mean 'verifiers'?")],
)
def test_a_wrong_name_is_named(name: str, reason: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_name(name)
    assert reason in str(raised.value)


@pytest.mark.integration
def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    options = ["--python", "nowhere/python", "--out", "out"]
    assert says(run("env", "verifiers:x", *options, cwd=tmp_path)) == (
        "nowhere/python cannot be started: No such file or directory"
    )
    sentence = says(run("env", "verifiers:x", "--python", sys.executable, "--out", "out", cwd=tmp_path))
    assert sentence.endswith("ModuleNotFoundError: No module named 'verifiers'")


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("", ""),
        ("loading\nno such split: say how many\n", "no such split: say how many"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    ensure()\n'
            "verifiers.MissingKeyError: Missing required environment variable(s): MY_JUDGE_KEY\n\n"
            "Set them:\n  - Local: export OPENAI_API_KEY=...\n",
            "verifiers.MissingKeyError: Missing required environment variable(s): MY_JUDGE_KEY Set them: - Local: "
            "export OPENAI_API_KEY=...",
        ),
        (
            "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'\n\nDuring handling of it:\n\n"
            'Traceback (most recent call last):\n  File "b.py"\nValueError: wrong\n',
            "ValueError: wrong",
        ),
    ],
)
def test_an_error_of_an_environment_has_all_its_lines(output: str, error: str) -> None:
    assert find_error(output) == error
