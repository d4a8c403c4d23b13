"""A run is resumed by its name alone: its directory has the settings of its last start."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lightningbus as lb
from lightningbus.cli.app import app
from lightningbus.run.errors import UserError
from lightningbus.run.jobs import train_job
from lightningbus.run.run_directory.directory import SETTINGS, RunDirectory
from lightningbus.run.run_directory.recorded_settings import (
    load_named_run,
    read_recorded_settings,
    record_settings,
)
from lightningbus.run.settings.run_file import RunSettings, load_run_settings
from tests.commands import ROOT
from tests.lightningbus.test_train_job import job_of

STARTED = "the job got this far"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """The settings with which jobs start; none of them gets as far as its processes."""
    settings: list[RunSettings] = []

    async def check(checked: RunSettings) -> None:
        settings.append(checked)

    @asynccontextmanager
    async def refuse(*_: Any) -> AsyncIterator[None]:
        raise UserError(STARTED)
        yield

    monkeypatch.setattr(train_job, "_check", check)
    monkeypatch.setattr(train_job, "start_stack", refuse)
    return settings


def train(*arguments: str) -> str:
    """Run the command; returns its errors."""
    result = CliRunner().invoke(app, ["train", *arguments])
    assert (result.exit_code, "Traceback" in result.output) == (2, False), result.output
    return result.stderr


def test_a_name_alone_goes_on_with_the_settings_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunSettings]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings, _ = job_of(Path(), max_steps=7, group_size=4)
    Path("run.yaml").write_text(settings.model_dump_json(exclude_unset=True))
    assert STARTED in train("-c", "run.yaml")
    Path("run.yaml").unlink()
    assert STARTED in train("--resume", "small")
    assert STARTED in train("--resume", "runs/small")
    first, second, third = started
    assert first == second == third, "nothing is lost on the way"
    Path("longer.yaml").write_text("learner: {max_steps: 9}\nname: other\n")
    assert STARTED in train("--resume", "small", "-c", "longer.yaml")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_CPU_THREADS", "3")
    assert STARTED in train("--resume", "small")
    learner = started[-1].learner
    assert learner is not None and (learner.max_steps, learner.group_size, learner.cpu_threads) == (9, 4, 3)
    assert started[-1].name == "small" and len(list(Path("runs").iterdir())) == 1, "no run was moved aside"
    Path("longer.yaml").write_text("learner: {group_size: 2}")
    assert "learner.group_size was 4 and is 2 now" in train("--resume", "small", "-c", "longer.yaml")
    assert (Path("runs/small") / SETTINGS).stat().st_mode & 0o777 == 0o600


def test_from_python_what_is_given_wins_over_what_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunSettings]
) -> None:
    monkeypatch.chdir(tmp_path)
    job_of(Path())
    arguments: dict[str, Any] = {"name": "small", "max_steps": 7, "group_size": 4}
    with pytest.raises(lb.UserError, match=STARTED):
        lb.train("agent:solve", "model", "train.jsonl", "heldout.jsonl", **arguments)
    with pytest.raises(lb.UserError, match=STARTED):
        lb.train(resume="small")
    assert started[0] == started[1]
    with pytest.raises(lb.UserError, match=STARTED):
        lb.train("other:solve", name="small", resume=True, max_steps=9)
    learner = started[2].learner
    assert learner is not None and (learner.max_steps, learner.group_size) == (9, 4)
    assert started[2].runners[0].entrypoint == "other:solve" and started[2].inference == started[0].inference
    with pytest.raises(lb.UserError, match="resume='small' names the run: leave out name='large'"):
        lb.train(resume="small", name="large")
    with pytest.raises(lb.UserError, match="there is no run 'smal'; did you mean 'small'"):
        lb.train(resume="smal")
    with pytest.raises(lb.UserError, match=STARTED):
        lb.train(settings=started[0], resume=True), "a whole run file"


def test_a_start_that_leaves_out_what_it_needs_says_so() -> None:
    assert "give a run file by -c, or --resume with the name of a run" in train()
    assert "give a run file by -c, or --resume with the name of a run" in train("--resume")
    assert "a run is continued by `lightningbus train --resume small`" in train("small")
    result = CliRunner().invoke(app, ["up"])
    assert (result.exit_code, "give a run file by -c, or the name of a run" in result.stderr) == (2, True)


def test_a_record_that_cannot_be_used_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(Path("runs/small")).create()
    assert "has no settings on record (run.json): give its run file by -c" in train("--resume", "small")
    for damaged in ("", "{", "[]", "[" * 100_000):
        (run.path / SETTINGS).write_text(damaged)
        assert "runs/small/run.json cannot be read" in train("--resume", "small")
    (run.path / SETTINGS).write_text(json.dumps({"name": "small", "nosuch": 1}))
    assert "runs/small/run.json: nosuch: no such setting" in train("--resume", "small")
    (run.path / SETTINGS).write_text(json.dumps({"name": "small"}))
    run.path.rename("runs/small-20261128-101500")
    assert "holds the run 'small', which was moved aside or renamed" in train("--resume", "small-20261128-101500")
    assert "there is no run 'small'; known are small-20261128-101500" in train("--resume", "small")


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("examples/*/[st][mr]a*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_run_file_comes_back_from_the_record_as_it_was(path: Path, tmp_path: Path) -> None:
    settings = load_run_settings(path).model_copy(update={"runs": tmp_path})
    run = RunDirectory(tmp_path / settings.name).create()
    record_settings(run, settings)
    assert read_recorded_settings(run)["runs"] == str(tmp_path)
    assert load_named_run(settings.name, None, tmp_path) == settings
