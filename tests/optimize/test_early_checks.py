"""A wrong run file of an optimisation is refused before its directory is made and before a process starts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.optimize import job
from lightningbus.optimize.training_rounds import training_rounds
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.tasks.errors import TaskFileError

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"reflection": {"url": "http://127.0.0.1:1/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}},
        r"optimize\.reflection\.api_key_env: the variable NO_SUCH_KEY is not set",
    ),
    ({"prompts": {"solver": {"file": "missing.txt"}}}, r"prompt 'solver': missing\.txt cannot be read"),
    ({"budget": 3}, r"optimize\.budget: 3 rollouts are too few"),
    ({"heldout": "tasks.jsonl"}, r"optimize\.heldout: task 'n0' is in optimize\.tasks too"),
]


def write_fields(directory: Path, **changes: Any) -> dict[str, Any]:
    """The run file's fields, and its tasks beside it."""
    for name, first in (("tasks", 0), ("heldout", 10)):
        lines = [json.dumps({"id": f"n{first + number}", "input": number}) + "\n" for number in range(3)]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    optimize = {
        "prompts": {"solver": {"text": "Add."}}, "tasks": "tasks.jsonl", "heldout": "heldout.jsonl", "budget": 100,
        "reflection": {"url": "http://127.0.0.1:1/v1", "model": "m"}, **changes,
    }  # fmt: skip
    return {"name": "early", "bus": {"url": "nats://127.0.0.1:1"}, "optimize": optimize}


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=["key", "prompt file", "budget", "held-out tasks"])
def test_an_optimisation_is_refused_before_anything_is_made(
    changes: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = RunSettings.model_validate(write_fields(tmp_path, **changes))
    with pytest.raises(UserError, match=sentence):
        asyncio.run(job.run(settings, resume=False))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=["key", "prompt file", "budget", "held-out tasks"])
def test_a_training_job_is_refused_before_anything_is_made(
    changes: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = RunSettings.model_validate(write_fields(tmp_path, every=2, **changes))
    with pytest.raises(UserError, match=sentence):
        training_rounds(settings)


def test_tasks_that_cannot_be_read_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = write_fields(tmp_path)
    (tmp_path / "heldout.jsonl").write_text("{\n")
    with pytest.raises(TaskFileError, match=r"heldout\.jsonl line 1"):
        asyncio.run(job.run(RunSettings.model_validate(fields), resume=False))
    (tmp_path / "run.yaml").write_text(json.dumps(fields))
    done = CliRunner().invoke(app, ["optimize", "-c", "run.yaml"])
    assert done.exit_code == 2 and "heldout.jsonl line 1" in done.stderr
    assert not (tmp_path / "runs").exists()
