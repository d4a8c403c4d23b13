"""``lightningbus sft``: what it refuses, the run it makes of its flags, and a training from a file to a model."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from typer.testing import CliRunner

from lightningbus.analysis.run_history import RunHistory
from lightningbus.cli.app import app
from lightningbus.run.errors import UserError
from lightningbus.run.jobs import supervised_job
from lightningbus.run.run_data.run_data import RunData
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.supervised import SupervisedRequest, build_supervised_settings, with_steps
from tests.factories import model_call, rollout
from tests.learner.conftest import fitting_model, settings_for, tiny_model
from tests.learner.test_demonstrations import LINES, write_lines
from tests.polling import HANG_SECONDS


def test_flags_win_over_a_run_file_and_rollouts_are_left_out(tmp_path: Path) -> None:
    fields = {
        "name": "first",
        "runs": "elsewhere",
        "store": {"database": "mine"},
        "learner": {"model_path": "m", "tasks": "t.jsonl", "actor": {"optim": {"lr": 1e-3}}, "lora": {"lora_rank": 4}},
        "runners": [{"entrypoint": "agent:solve"}],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
    request = SupervisedRequest("sft", tmp_path / "chats.jsonl", tmp_path / "run.yaml", batch_size=4)
    settings = with_steps(build_supervised_settings(request), 10, 2)
    learner = settings.learner
    assert learner is not None and learner.supervised is not None and settings.store is not None
    assert (settings.name, str(settings.runs), settings.store.database) == ("sft", "elsewhere", "mine")
    assert (learner.tasks, learner.groups_per_step, learner.max_steps, learner.supervised.batch_size) == (None, 0, 5, 4)
    assert (learner.actor.optim.lr, learner.lora.lora_rank, settings.runners) == (1e-3, 4, [])
    alone = build_supervised_settings(SupervisedRequest("sft", tmp_path / "f", model_path=Path("m"), lr=0.5)).learner
    assert alone is not None and (alone.actor.optim.lr, alone.actor.loss_agg_mode) == (0.5, "token-mean")
    with pytest.raises(UserError, match="the model to train is not known: give --model-path"):
        build_supervised_settings(SupervisedRequest("sft", tmp_path / "f"))


def test_a_training_outside_runs_is_resumed_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "sft").mkdir(parents=True)
    settings = build_supervised_settings(SupervisedRequest("sft", tmp_path / "f", model_path=Path("m")))
    (tmp_path / "elsewhere" / "sft" / supervised_job.RECORD).write_text(settings.model_dump_json(exclude_unset=True))
    resumed: list[RunSettings] = []

    async def run(settings: RunSettings, *, resume: bool) -> RunDirectory:
        resumed.append(settings)
        assert resume
        return RunDirectory(settings.runs / settings.name)

    monkeypatch.setattr(supervised_job, "run", run)
    done = CliRunner().invoke(app, ["sft", "--resume", "--name", "elsewhere/sft"], catch_exceptions=False)
    assert (done.exit_code, [str(each.runs) for each in resumed]) == (0, ["elsewhere"]), done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give a file of chats, or --run with the run whose rollouts to train on"),
        (["chats.jsonl", "--run", "first"], "give a file of chats, or --run"),
        (["chats.jsonl"], "the model to train is not known"),
        (["chats.jsonl", "--model-path", "nowhere"], "model_path: nowhere is no model: there is no such directory"),
        (["chats.jsonl", "--resume"], "--resume goes on with the data and settings of its start"),
        (["--resume"], "runs/sft holds no supervised training to resume"),
        (["chats.jsonl", "--name", "a b"], "--name: 'a b' is not a name"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["sft", *arguments])
    assert done.exit_code == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing is touched"


class OneRun:
    """The history of a run with two rollouts."""

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self.requests: list[Any] = []

    def best_rollouts(self, per_task: int, min_reward: float) -> list[Any]:
        self.requests.append((per_task, min_reward))
        return self.query_rollouts("") if min_reward <= 1 else []

    def query_rollouts(self, query: str) -> list[Any]:
        self.requests.append(query)
        return [rollout("a", sample, 1.0, calls=[model_call(0, [5, 6], [7])]) for sample in range(2)]

    def last_settings(self) -> Any:
        return settings_for(self._model_path)


def test_rollouts_of_a_run_are_copied_as_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run gives the model, and its best rollouts or those of a query; the copy outlives the run."""
    model, seen = tiny_model(tmp_path / "model"), list[RunSettings]()
    history = OneRun(model)

    async def look(settings: RunSettings, *, resume: bool) -> Any:
        assert settings.learner is not None and settings.learner.supervised is not None
        assert settings.learner.supervised.path.exists() and not resume
        seen.append(settings)
        return Mock(list_export_commands=list)

    monkeypatch.setattr(RunHistory, "open", lambda *_: history)
    monkeypatch.setattr(RunData, "open", lambda *_: Mock())
    monkeypatch.setattr("lightningbus.run.run_data.run_names.find_stored_run", lambda client, name: name)
    monkeypatch.setattr(RunData, "of", lambda *_: RunData(None))
    monkeypatch.setattr(supervised_job, "run", look)
    command = ["sft", "--run", "first", "--batch-size", "1", "--epochs", "3"]
    done = CliRunner().invoke(app, [*command, "--top-k", "2", "--min-reward", "0.5"])
    assert done.exit_code == 0, done.stderr
    done = CliRunner().invoke(app, [*command, "--query", "SELECT execution_id FROM rollouts"])
    assert done.exit_code == 0, done.stderr
    assert [(each.learner.max_steps, each.learner.model_path) for each in seen if each.learner] == [(6, model)] * 2
    assert history.requests == [(2, 0.5), "", "SELECT execution_id FROM rollouts"]
    done = CliRunner().invoke(app, [*command, "--min-reward", "2"])
    assert done.exit_code == 2 and "has no rollout of a reward of at least 2 (--min-reward)" in done.stderr


def train_with_a_stop(directory: Path, name: str, path: Path, model: Path) -> None:
    """Let the real processes of a command train 20 steps on a file, stop them, and let them go on to a model."""
    ports = {"bus": {"port": 0}, "store": {"http_port": 0}}
    (directory / "run.yaml").write_text(json.dumps({**ports, "learner": {"actor": {"optim": {"lr": 1e-2}}}}))
    command = [sys.executable, "-m", "lightningbus", name]
    start = [str(path), "-c", "run.yaml", "--model-path", str(model), "--batch-size", "3", "--epochs", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([*command, *start], cwd=directory, env=environment, stderr=subprocess.PIPE, text=True)
    asyncio.run(_until_there(directory / "runs" / name / "checkpoints" / "latest", first))
    first.send_signal(signal.SIGTERM)
    _, text = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode == 2 and f"lightningbus {name} --resume --name {name} goes on" in text
    done = subprocess.run(
        [*command, "--resume", "--out", "trained"],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("is in trained")


async def _until_there(path: Path, process: "subprocess.Popen[str]") -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not path.exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            await asyncio.sleep(0.2)


@pytest.mark.integration
@pytest.mark.long
def test_a_file_of_chats_becomes_a_model_also_after_a_stop(tmp_path: Path) -> None:
    """The model that comes out knows the answers better."""
    import torch
    from transformers import AutoModelForCausalLM

    from lightningbus.learner.demonstration_files import load_demonstrations

    model = fitting_model(tmp_path / "model")
    path = write_lines(tmp_path / "chats.jsonl", LINES)
    train_with_a_stop(tmp_path, "sft", path, model)

    def loss(directory: Path) -> float:
        scored, total = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), 0.0
        for call in (call for each in load_demonstrations(path, model) for call in each.calls):
            ids = torch.tensor([*call.prompt_ids, *call.response_ids])[None]
            labels = ids.clone()
            labels[0, : len(call.prompt_ids)] = -100
            total += float(scored(input_ids=ids, labels=labels).loss)
        return total

    assert loss(tmp_path / "trained") < 0.5 * loss(model)
