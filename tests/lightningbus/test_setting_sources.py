"""Every setting of a role can stand in its file, in the environment and in a flag; the later one wins."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from lightningbus.cli.app import app
from lightningbus.cli.options import load_settings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import load_run_settings
from lightningbus.run.settings.sources import find_source, merge, read_environment, read_flags, without_settings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_source import TaskSource

FLAGS = ["--group-size", "4", "--actor.optim.lr", "1e-4", "--train-roles", "a", "--train-roles", "b"]


def load(file: Path, *flags: str, **options: Any) -> LearnerSettings:
    return load_settings(LearnerSettings, "learner", file, flags, **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "learner.yaml"
    path.write_text("model_path: m\ngroup_size: 2\nmax_staleness: 5\nactor: {clip_ratio_low: 0.1, optim: {lr: 0.5}}\n")
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_GROUP_SIZE", "3")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_GROUPS_PER_STEP", "7")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__WEIGHT_DECAY", "0.25")
    settings = load(file, *FLAGS, max_steps=9)
    assert (settings.max_staleness, settings.groups_per_step, settings.group_size, settings.max_steps) == (5, 7, 4, 9)
    optim = settings.actor.optim
    assert (settings.actor.clip_ratio_low, optim.lr, optim.weight_decay) == (0.1, 1e-4, 0.25), "level by level"
    assert settings.train_roles == ["a", "b"]


def test_lists_and_mappings_of_variables_are_json(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_TRAIN_ROLES", '["writer"]')
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_SAMPLING_PARAMS", '{"temperature": 0.5}')
    settings = load(file)
    assert settings.train_roles == ["writer"] and settings.sampling_params == {"temperature": 0.5}
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_TRAIN_ROLES", "writer")
    with pytest.raises(UserError, match="train_roles"):
        read_environment(LearnerSettings, "learner")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--engine.fsdp-sise", "4"], "--engine.fsdp-sise: no such option; did you mean '--engine.fsdp-size'?"),
        (["--groupsize", "4"], "--groupsize: no such option; did you mean '--group-size'?"),
        (["--group-size"], "expected one argument"),
        (["tasks.jsonl"], "tasks.jsonl: no such option"),
    ],
)
def test_a_wrong_flag_is_one_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read_flags(LearnerSettings, "learner", flags)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("flag", "setting"),
    [("--agent", "--entrypoint"), ("--agent=agent:solve", "--entrypoint"), ("--name", "--agent-name")],
)
def test_a_renamed_flag_is_told_by_its_setting(flag: str, setting: str) -> None:
    with pytest.raises(UserError, match=f"no such option; did you mean '{setting}'"):
        read_flags(RunnerSettings, "runner", [flag, "agent:solve"])
    with pytest.raises(UserError, match="--path: no such option") as error:
        read_flags(LearnerSettings, "learner", ["--path", "agent"])
    assert "--working-dir" not in str(error.value), "a learner has none"


def test_a_wrong_value_is_one_sentence_and_exit_code_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(file, "--group-size", "many")
    assert end.value.code == 2 and "group_size: Input should be a valid integer" in capsys.readouterr().err


def test_a_misspelt_variable_of_the_role_is_refused_once(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_GROUPSIZE", "4")
    with pytest.raises(SystemExit) as end:
        load(file)
    sentence = "$LIGHTNINGBUS_LEARNER_GROUPSIZE: no such setting; did you mean 'LIGHTNINGBUS_LEARNER_GROUP_SIZE'?"
    assert end.value.code == 2 and capsys.readouterr().err.count(sentence) == 1 and not caplog.text


def test_a_misspelt_variable_of_no_role_is_one_warning(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_LERNER_GROUP_SIZE", "4")
    load(file)
    assert [record.getMessage() for record in caplog.records] == [
        "$LIGHTNINGBUS_LERNER_GROUP_SIZE: no such variable; without LIGHTNINGBUS_, did you mean 'LEARNER_GROUP_SIZE'?"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "LIGHTNINGBUS_LEARNER_SERVICE_HOST",
        "LIGHTNINGBUS_LEARNER_PORT_8123_TCP_ADDR",
        "LIGHTNINGBUS_LEARNER_PORT",
        "LIGHTNINGBUS_BUS",
        "LIGHTNINGBUS_RUNNER_CONCURRENCY",
        "LIGHTNINGBUS_GRAFANA_VERSION",
    ],
)
def test_variables_of_others_are_left_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8123")
    load(file)
    assert not caplog.text


def test_the_store_takes_flags_beside_its_subcommands(monkeypatch: pytest.MonkeyPatch) -> None:
    group: Any = typer.main.get_command(app)
    store = group.load("store")
    context = store.make_context("store", ["--http-port", "0", "--batch-rows", "5"])
    assert context.args == ["--batch-rows", "5"] and context.params["http_port"] == 0
    assert read_flags(StoreSettings, "store", context.args) == {"batch_rows": "5"}
    assert store.make_context("store", ["create-users"])._protected_args == ["create-users"]


def test_a_run_file_takes_the_variables_of_the_roles_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_RUNNER_CONCURRENCY", "9")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_MAX_STEPS", "3")
    path = tmp_path / "run.yaml"
    runners = [{"entrypoint": "a:b"}, {"entrypoint": "c:d", "agent_name": "other"}]
    path.write_text(json.dumps({"name": "r", "runners": runners}))
    settings = load_run_settings(path)
    assert [runner.concurrency for runner in settings.runners] == [9, 9] and settings.learner is None
    environment = {"PATH": "p", "LIGHTNINGBUS_RUNNER_CONCURRENCY": "9", "LIGHTNINGBUS_BUS": "nats://x"}
    assert without_settings(environment, ["runner", "learner"]) == {"PATH": "p", "LIGHTNINGBUS_BUS": "nats://x"}


def test_a_level_is_merged_and_anything_else_replaced() -> None:
    assert merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}}, {"d": {"e": 1}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {"e": 1},
    }


def test_tasks_are_a_path_or_a_mapping_in_a_file_a_variable_and_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"path": "train.parquet", "columns": {"question": "prompt"}, "id": "uid"}
    (tmp_path / "a.yaml").write_text(json.dumps({"model_path": "m", "tasks": source}))
    settings = load(tmp_path / "a.yaml")
    assert settings.tasks == TaskSource.model_validate(source)
    assert LearnerSettings.model_validate_json(settings.model_dump_json()) == settings, "a child process reads it so"
    assert load(tmp_path / "a.yaml", tasks=Path("b.jsonl")).tasks == Path("b.jsonl")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_TASKS", "c.csv")
    assert load(tmp_path / "a.yaml").tasks == Path("c.csv")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_TASKS", '{"path": "hf:d", "columns": {"question": "text"}}')
    assert str(load(tmp_path / "a.yaml").tasks) == "hf:d"


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ({"path": "a.csv", "colums": {}}, "tasks: colums: no such setting; did you mean 'columns'?"),
        ({"columns": {"q": "prompt"}}, "tasks: path: it is needed"),
        ({"path": "a.csv", "columns": {"q": 3}}, "tasks: columns.q: Input should be a valid string"),
        (
            [{"name": "a", "path": "a.csv", "wieght": 1}],
            "tasks: set 'a': wieght: no such setting; did you mean 'weight'?",
        ),
    ],
)
def test_a_wrong_field_of_tasks_is_named(tmp_path: Path, tasks: Any, reason: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"learner": {"model_path": "m", "tasks": tasks}}))
    with pytest.raises(UserError) as raised:
        load_run_settings(path)
    assert str(raised.value) == f"{path}: learner.{reason}"


def test_underscores_in_the_name_of_a_flag_are_dashes() -> None:
    flags = ["--engine.fsdp_size", "3", "--group_size=4", "--train_roles", "a_b", "--checkpoint_dir=runs/my_run"]
    assert read_flags(LearnerSettings, "learner", flags) == {
        "engine": {"fsdp_size": "3"},
        "group_size": "4",
        "train_roles": ["a_b"],
        "checkpoint_dir": "runs/my_run",
    }


def test_one_teacher_has_flags_and_several_are_a_list() -> None:
    alone = read_flags(LearnerSettings, "learner", ["--model-path=m", "--teacher.url=http://t", "--teacher.top-k=4"])
    assert alone == {"model_path": "m", "teacher": {"url": "http://t", "top_k": "4"}}
    (teacher,) = LearnerSettings.model_validate(alone).teachers
    assert (teacher.url, teacher.top_k) == ("http://t", 4)
    both = [{"name": "a", "url": "http://t", "roles": ["writer"]}, {"name": "b", "url": "http://u"}]
    several = read_flags(LearnerSettings, "learner", ["--model-path=m", "--teacher", json.dumps(both)])
    assert [each.name for each in LearnerSettings.model_validate(several).teachers] == ["a", "b"]


@pytest.mark.parametrize("name", ["http-port", "http_port"])
def test_underscores_in_the_name_of_an_option_are_dashes_too(name: str) -> None:
    group: Any = typer.main.get_command(app)
    context = group.load("store").make_context("store", [f"--{name}", "0", "--batch_rows", "5"])
    assert context.params["http_port"] == 0 and read_flags(StoreSettings, "store", context.args) == {"batch_rows": "5"}


def test_a_wrong_value_of_a_flag_or_a_variable_does_not_blame_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*flags: str) -> str:
        with pytest.raises(SystemExit):
            load(file, *flags)
        return capsys.readouterr().err.removeprefix("lightningbus: ").strip()

    flag = "--actor.ppo-max-token-len-per-gpu"
    assert refusal(flag, "4096").startswith(f"{flag}: actor.ppo_max_token_len_per_gpu (4096) must be at least seq_len")
    assert refusal("--group-size", "x").startswith("--group-size: group_size: Input should be a valid integer")
    both = refusal("--group_size", "x", "--actor.optim.lr", "y")
    assert both.startswith("--group-size, --actor.optim.lr: 2 settings are wrong")
    assert refusal("--max-steps", "3", "--temperature", "1").startswith("--temperature: no such option")
    monkeypatch.setenv("LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__LR", "-1")
    assert refusal("--max-steps", "3").startswith("$LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__LR: actor.optim.lr: ")
    monkeypatch.delenv("LIGHTNINGBUS_LEARNER_ACTOR__OPTIM__LR")
    file.write_text("model_path: m\ngroup_size: x\n")
    assert refusal("--max-steps", "3").startswith(f"{file}: group_size: ")


def test_the_origin_of_a_setting_is_found_by_its_whole_name() -> None:
    origins = {"actor.optim.lr": "--lr", "seq_len": "--seq-len", "model": "--model"}
    assert find_source("actor.optim.lr: too large", origins) == "--lr"
    assert find_source("limit (3) must be at least seq_len (4): a model is read", origins) == "--seq-len"
    assert find_source("actor.optim.lr_scheduler_type: no", origins) == ""
    assert find_source("model: it is no name", origins) == "--model"
