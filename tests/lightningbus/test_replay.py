"""A run trained offline: what is wrong with a user's own function is the learner's sentence, not a traceback."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from lightningbus.analysis.run_history import RecordedStep, RunHistory
from lightningbus.cli.app import app
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.run_data.run_data import RunData
from tests.factories import group, rollout
from tests.learner.conftest import settings_for, tiny_model

NAN = float("nan")


class OneStep:
    """A history of one step, of a group of two rollouts."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._step = RecordedStep(1, 1, settings, "", {})

    def steps(self, first: int, last: int) -> list[RecordedStep]:
        return [self._step]

    def groups(self, step: RecordedStep) -> list[Any]:
        return [group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))]

    def quarantined(self, step: RecordedStep) -> dict[str, str]:
        return {}


def broken(*arguments: Any) -> Any:
    raise IndexError("no such call")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> LearnerSettings:
    return settings_for(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actor": {"policy_loss": "mine:nan"}}, "actor.policy_loss: mine:nan returned NaN for "),
        ({"actor": {"policy_loss": "mine:broken"}}, "actor.policy_loss: mine:broken raised IndexError: no such call ("),
        ({"algorithm": {"adv_estimator": "mine:broken"}}, "algorithm.adv_estimator: mine:broken raised IndexError: "),
        ({"credit": "mine:broken"}, "credit.method: mine:broken raised IndexError: no such call ("),
        ({"credit": "mine:missing"}, "credit.method: 'mine:missing' cannot be imported: "),
        ({"actor": {"policy_loss": "mine:missing"}}, "actor.policy_loss: 'mine:missing' cannot be imported: "),
    ],
)
def test_what_is_wrong_with_an_own_function_is_the_learners_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: LearnerSettings, changes: Any, sentence: str
) -> None:
    module: Any = ModuleType("mine")
    module.nan, module.broken = lambda log_prob, *_: log_prob * NAN, broken
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr(RunHistory, "open", lambda *_: OneStep(recorded))
    monkeypatch.setattr(RunData, "open", lambda *_: Mock())
    (tmp_path / "other.yaml").write_text(json.dumps(changes))
    command = ["steps", "replay", "--step", "1", "--train", tmp_path / "out", "--settings", tmp_path / "other.yaml"]
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert sentence in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert "parameters" not in done.stderr, "verl prints what it builds"
