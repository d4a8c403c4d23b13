"""Keyword arguments become settings of a run file."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from pydantic import BaseModel

import lightningbus as lb
from lightningbus import settings
from lightningbus.api.settings import PATHS, EvaluateSettings, TrainSettings, build_run_settings
from lightningbus.api.user_errors import name_as_in_python
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings
from tests.commands import ROOT

BASE: dict[str, Any] = {
    "inference": [{"model_path": "model"}],
    "runners": [{"entrypoint": "agent:solve", "concurrency": 8}],
    "learner": {"model_path": "model", "tasks": "train.jsonl"},
    "eval": {"tasks": "heldout.jsonl"},
}


def built(**settings: Any) -> RunSettings:
    return build_run_settings(BASE, settings, TrainSettings)


def test_common_settings_have_short_names() -> None:
    run = built(name="mine", runs=Path("elsewhere"), max_steps=5, lr=1e-4, concurrency=3, max_model_len=128, samples=4)
    assert run.learner is not None and run.eval is not None
    assert (run.name, run.runs, run.learner.max_steps, run.learner.actor.optim.lr) == (
        "mine",
        Path("elsewhere"),
        5,
        1e-4,
    )
    assert (run.runners[0].concurrency, run.inference[0].max_model_len, run.eval.samples) == (3, 128, 4)
    assert run.runners[0].entrypoint == "agent:solve" and run.bus.port == 0


def test_sections_take_every_setting_of_a_run_file() -> None:
    run = built(
        learner={"actor": {"optim": {"lr": 1e-5}}, "seq_len": 64},
        inference={"dtype": "float32"},
        runners=[{"concurrency": 1}, {"concurrency": 2}],
        lr=2e-5,
    )
    assert run.learner is not None and run.learner.seq_len == 64
    assert run.inference[0].dtype == "float32" and str(run.inference[0].model_path) == "model"
    assert [(runner.entrypoint, runner.concurrency) for runner in run.runners] == [
        ("agent:solve", 1),
        ("agent:solve", 2),
    ]
    assert run.learner.actor.optim.lr == 2e-5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_step": 5}, "max_step: no such setting; did you mean 'max_steps'?"),
        ({"seq_len": 64}, "seq_len: no such setting; write learner={'seq_len': ...}"),
        ({"learner": {"max_step": 5}}, "settings: learner.max_step: no such setting; did you mean 'max_steps'?"),
        ({"max_steps": "many"}, "max_steps: "),
        ({"runners": 3}, "runners: give a dict of settings, or a list of dicts"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest_right_one(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        built(**settings)
    assert str(raised.value).startswith(sentence)


def test_every_short_name_is_a_keyword_argument_and_a_setting() -> None:
    known = get_type_hints(TrainSettings)
    assert PATHS.keys() <= known.keys() and known.keys() - PATHS.keys() <= RunSettings.model_fields.keys()
    assert get_type_hints(EvaluateSettings).keys() < known.keys()


class _CheckedError(Exception):
    """The settings have been checked, and no run is started."""


def trained(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> RunSettings:
    """The settings with which `lb.train` would start a run."""
    checked: list[RunSettings] = []

    def check(settings: RunSettings, source: str) -> None:
        checked.append(settings)
        raise _CheckedError

    monkeypatch.setattr("lightningbus.api.training.job_checks.parse_job", check)
    with pytest.raises(_CheckedError):
        lb.train(*arguments, **options)
    return checked[0]


def test_sections_may_be_objects_of_the_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(
        monkeypatch, "agent:solve", tasks="train.jsonl", heldout="test.jsonl", lr=3e-5,
        learner=settings.LearnerSettings(
            model_path=Path("model"), seq_len=64, actor=settings.ActorSettings(optim=settings.OptimSettings(lr=1e-5))
        ),
        runners=settings.RunnerSettings(max_open_files=64), budget=settings.BudgetSettings(hours=2),
        inference=[{"dtype": "float32"}], eval={"samples": 3},
    )  # fmt: skip
    assert run.learner is not None and run.eval is not None and run.budget is not None
    assert (str(run.learner.model_path), run.learner.seq_len, run.learner.actor.optim.lr) == ("model", 64, 3e-5)
    assert str(run.learner.tasks) == "train.jsonl" and (str(run.eval.tasks), run.eval.samples) == ("test.jsonl", 3)
    assert [(str(node.model_path), node.dtype) for node in run.inference] == [("model", "float32")]
    (runner,) = run.runners
    assert (runner.entrypoint, runner.max_open_files, runner.concurrency) == ("agent:solve", 64, None)


@pytest.mark.parametrize("form", ["object", "fields", "path"])
def test_a_whole_run_file_is_taken_in_each_form_and_arguments_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = {"name": "mine", "runs": "elsewhere", **BASE, "learner": {**BASE["learner"], "max_steps": 5, "seed": 1}}
    Path("run.yaml").write_text(yaml.safe_dump(fields))
    file = {"object": RunSettings.model_validate(fields), "fields": fields, "path": Path("run.yaml")}[form]
    run = trained(monkeypatch, settings=file)
    assert run.learner is not None and (run.name, run.learner.max_steps, run.learner.seed) == ("mine", 5, 1)
    assert [(each.entrypoint, each.concurrency) for each in run.runners] == [("agent:solve", 8)]
    assert run.bus.port == 0 and run.runs == Path("elsewhere")
    run = trained(monkeypatch, "other:solve", "base", settings=file, max_steps=7)
    assert run.learner is not None and (str(run.learner.model_path), run.learner.max_steps) == ("base", 7)
    assert (run.runners[0].entrypoint, run.learner.seed, str(run.inference[0].model_path)) == ("other:solve", 1, "base")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"settings": 3}, "settings: give a run file, not a int"),
        ({"settings": "none.yaml"}, "none.yaml cannot be read: "),
        ({"learner": {"model_path": "m"}}, "agent: give either an agent (module:function) or a command"),
    ],
)
def test_what_is_missing_is_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        lb.train(**arguments)
    assert str(raised.value).startswith(sentence)


SNIPPET = """
from pathlib import Path
import lightningbus as lb
from lightningbus.settings import ActorSettings, BudgetSettings, LearnerSettings, OptimSettings, RunnerSettings

lb.train(
    "agent:solve",
    tasks="train.jsonl",
    heldout="test.jsonl",
    learner=LearnerSettings(model_path=Path("m"), actor=ActorSettings(optim=OptimSettings(lr=1e-5)), seq_len=64),
    runners=[RunnerSettings(max_open_files=64), {"concurrency": 2}],
    budget=lb.settings.BudgetSettings(hours=2),
    max_steps=5,
)
"""
WRONG = """
LearnerSettings(model_path=Path("m"), max_step=5)
lb.train("agent:solve", max_step=5)
RunnerSettings(concurrency="many")
"""


@pytest.mark.integration
@pytest.mark.long
def test_a_type_checker_knows_the_fields_without_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET + WRONG)
    (tmp_path / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "snippet.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line]
    assert len(errors) == 3, done.stdout + done.stderr
    assert errors[0].startswith('Unexpected keyword argument "max_step" for "LearnerSettings"')
    assert errors[1].startswith('Unexpected keyword argument "max_step" for "train"')
    assert "RunnerSettings" in errors[2] and '"concurrency"' in errors[2]


def test_the_package_says_that_it_has_types() -> None:
    assert (ROOT / "lightningbus" / "py.typed").exists()


def test_every_class_of_the_run_file_is_among_the_settings() -> None:
    contained, rest = set(), [RunSettings]
    while rest:
        kind = rest.pop()
        contained.add(kind)
        rest += [each for field in kind.model_fields.values() for each in classes_in(field.annotation) - contained]
    exported = {getattr(settings, name) for name in settings.__all__}
    assert contained - exported == set(), "classes of a run file that lightningbus.settings lacks"


def classes_in(annotation: Any) -> set[type[BaseModel]]:
    """The settings classes in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {each for argument in get_args(annotation) for each in classes_in(argument)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tasks": None}, "^tasks: give the tasks to train on"),
        ({"model": None}, "^model: it is needed"),
        ({"agent": None}, "^agent: give either an agent"),
        ({"agent": "solve"}, "^agent: it is not of the form module:function"),
        ({"lr": "high"}, "^lr: Input should be a valid number"),
        ({"learner": {"actor": {"optim": {"lr": "high"}}}}, r"^settings: learner\.actor\.optim\.lr: Input should be"),
        ({"learning_rate": 1e-5}, "^learning_rate: no such setting; did you mean 'lr'?"),
        ({"batch_size": 8}, r"^batch_size: no such setting; did you mean 'groups_per_step'\?$"),
        ({"learner": {"lr": 1}}, r"^settings: learner\.lr: no such setting; did you mean 'actor\.optim\.lr'\?$"),
        ({"group_size": 0, "concurrency": 0}, "^2 settings are wrong\n  group_size: .*\n  concurrency: "),
        ({"group_size": 0, "learner": {"nosuch": 1}}, "^settings: 2 settings are wrong\n  group_size: "),
        ({"group_size": 1}, "^group_size must be at least 2: grpo compares"),
        ({"learner": {"group_size": 1}}, r"^settings: learner\.group_size must be at least 2: grpo compares"),
        ({"resume": True}, "holds no training job to resume: start it without resume=True$"),
    ],
)
def test_an_error_names_the_argument_as_it_was_written(
    arguments: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = [{"id": "a", "input": 1}]
    fields = {"agent": "agent:solve", "model": "model", "tasks": row, "heldout": row, **arguments}
    with pytest.raises(lb.UserError) as refused:
        lb.train(**fields)
    assert re.search(sentence, str(refused.value)), refused.value


def test_options_of_commands_are_written_as_arguments_and_commands_are_not() -> None:
    assert name_as_in_python("give --base-model DIRECTORY, or --force") == "give base_model=DIRECTORY, or force=True"
    assert name_as_in_python("give --sql URL (in Python sql=URL)") == "give sql=URL"
    assert name_as_in_python("run 'a' has all its steps; raise learner.max_steps to go on").endswith(
        "; raise max_steps= to go on"
    )
    assert name_as_in_python("raise learner.weights.keep_best") == "raise learner.weights.keep_best"
    of_vllm = "inference.vllm_args: --gpu-memory-utilization needs a number"
    assert name_as_in_python(of_vllm) == of_vllm
    unchanged = "`lightningbus train --resume a` goes on -- at once, by a--b"
    assert name_as_in_python(unchanged) == unchanged
