"""``lightningbus dpo``: what it refuses, the pairs it takes of a run, and a training from a file to a model."""

import json
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
from lightningbus.run.jobs import supervised_job
from lightningbus.run.run_data.run_data import RunData
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.supervised import SupervisedRequest, build_supervised_settings, with_steps
from tests.factories import model_call, rollout
from tests.learner.conftest import fitting_model, settings_for, tiny_model
from tests.learner.test_preferences import PAIRS, write_pairs
from tests.lightningbus.test_sft import train_with_a_stop
from tests.polling import HANG_SECONDS


def test_a_run_file_gives_what_flags_leave_open(tmp_path: Path) -> None:
    learner = {
        "model_path": "m",
        "tasks": "t.jsonl",
        "supervised": {"path": "c"},
        "preferences": {"path": "p", "beta": 1},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"learner": learner}))
    request = SupervisedRequest(
        "dpo", tmp_path / "pairs.jsonl", tmp_path / "run.yaml", batch_size=4, lr=0.5, part="preferences"
    )
    settings = with_steps(build_supervised_settings(request), 10, 2).learner
    assert settings is not None and settings.preferences is not None
    assert (settings.groups_per_step, settings.max_steps, settings.supervised, settings.tasks) == (0, 5, None, None)
    assert (settings.preferences.beta, settings.preferences.batch_size, settings.actor.optim.lr) == (1.0, 4, 0.5)
    alone = SupervisedRequest("dpo", tmp_path / "f", model_path=Path("m"), part="preferences", beta=0.3)
    settings = build_supervised_settings(alone).learner
    assert settings is not None and settings.preferences is not None
    assert (settings.preferences.beta, settings.actor.optim.lr) == (0.3, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give a file of pairs, or --run with the run whose rollouts to train on"),
        (["pairs.jsonl", "--run", "first"], "give a file of pairs, or --run"),
        (["pairs.jsonl"], "the model to train is not known"),
        (["pairs.jsonl", "--model-path", "nowhere"], "model_path: nowhere is no model: there is no such directory"),
        (["pairs.jsonl", "--model-path", "nowhere", "--beta", "0"], "preferences.beta"),
        (["pairs.jsonl", "--resume"], "--resume goes on with the data and settings of its start"),
        (["--resume"], "runs/dpo holds no training on pairs to resume"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["dpo", *arguments])
    assert done.exit_code == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing is touched"


def test_a_training_of_another_kind_is_not_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    request = SupervisedRequest("first", tmp_path / "f", model_path=Path("m"))
    record = build_supervised_settings(request).model_dump_json(exclude_unset=True)
    (tmp_path / "runs" / "first" / supervised_job.RECORD).write_text(record)
    done = CliRunner().invoke(app, ["dpo", "--resume", "--name", "first"])
    assert done.exit_code == 2 and "runs/first holds no training on pairs to resume" in done.stderr


class OneRun:
    """The history of a run with two rollouts of a task, whose rewards differ, and a group of equal rewards."""

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self.has_pairs = True

    def paired_rollouts(self) -> tuple[list[Any], int]:
        best, worst = (
            rollout("a", sample, 1.0 - sample, calls=[model_call(0, [5, 6], [7 + sample])]) for sample in (0, 1)
        )
        return ([best, worst] if self.has_pairs else []), 1

    def query_rollouts(self, query: str) -> list[Any]:
        return [*self.paired_rollouts()[0], rollout("a", 2, 0.5, calls=[model_call(0, [5, 6], [9])])]

    def last_settings(self) -> Any:
        return settings_for(self._model_path)


def test_pairs_of_a_run_are_copied_as_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, seen = tiny_model(tmp_path / "model"), list[RunSettings]()
    history = OneRun(model)

    async def look(settings: RunSettings, *, resume: bool) -> Any:
        assert settings.learner is not None and settings.learner.preferences is not None
        assert settings.learner.preferences.path.exists() and not resume
        seen.append(settings)
        return Mock(list_export_commands=list)

    monkeypatch.setattr(RunHistory, "open", lambda *_: history)
    monkeypatch.setattr(RunData, "open", lambda *_: Mock())
    monkeypatch.setattr("lightningbus.run.run_data.run_names.find_stored_run", lambda client, name: name)
    monkeypatch.setattr(RunData, "of", lambda *_: RunData(None))
    monkeypatch.setattr(supervised_job, "run", look)
    for flags in ([], ["--query", "SELECT execution_id FROM rollouts"]):
        done = CliRunner().invoke(app, ["dpo", "--run", "first", "--batch-size", "1", "--epochs", "3", *flags])
        assert done.exit_code == 0, done.stderr
    assert "groups left out because no two of their rewards differ: 1" in caplog.text
    assert [(each.learner.max_steps, each.learner.model_path) for each in seen if each.learner] == [(3, model)] * 2
    history.has_pairs = False
    done = CliRunner().invoke(app, ["dpo", "--run", "first"])
    assert done.exit_code == 2 and "has no task with two rollouts of different rewards" in done.stderr


@pytest.mark.integration
@pytest.mark.long
def test_a_file_of_pairs_becomes_a_model_also_after_a_stop(tmp_path: Path) -> None:
    """The model that comes out tells the answers apart, as the metrics of its steps say."""
    import torch
    from transformers import AutoModelForCausalLM

    from lightningbus.learner.preference_files import load_preferences

    model = fitting_model(tmp_path / "model")
    path = write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    train_with_a_stop(tmp_path, "dpo", path, model)
    query = (
        "SELECT metrics['preference/accuracy'] AS accuracy, metrics['preference/margin'] AS margin "
        "FROM training_steps ORDER BY step"
    )
    command = [sys.executable, "-m", "lightningbus", "query", query, "--run", "dpo", "--json"]
    steps = json.loads(subprocess.check_output(command, cwd=tmp_path, text=True, timeout=HANG_SECONDS))
    assert abs(float(steps[0]["margin"])) < 1e-3 and float(steps[-1]["margin"]) > 0.1
    assert float(steps[-1]["accuracy"]) == 1.0

    def preferences_of(directory: Path) -> list[float]:
        """Margin of each pair's better answer over the worse, in nats."""
        scored = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        leads = []
        for pair in load_preferences(path, model):
            sums = []
            for answer in (pair.chosen, pair.rejected):
                (call,) = answer.calls
                ids = torch.tensor([*call.prompt_ids, *call.response_ids])[None]
                labels = ids.clone()
                labels[0, : len(call.prompt_ids)] = -100
                sums.append(-scored(input_ids=ids, labels=labels).loss.item() * call.num_tokens)
            leads.append(sums[0] - sums[1])
        return leads

    before, after = preferences_of(model), preferences_of(tmp_path / "trained")
    assert all(later > earlier + 0.5 for earlier, later in zip(before, after, strict=True))
