"""What a dry run looks at before it runs the agent: the trial task, the learner's names, the model's folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightningbus.run.preflight import TrainJob, describe_trial, parse_job
from lightningbus.run.settings import RunSettings, validate_settings
from lightningbus.run.trial_rollout import WantedReward

pytestmark = pytest.mark.unit

LEARNERS = [
    {"model_path": "m", "model": "writer", "tasks": "tasks.jsonl"},
    {"model_path": "m", "model": "checker", "tasks": "tasks.jsonl", "reward": "checker"},
]


def run_of(**changes: Any) -> RunSettings:
    """A run of two models beside a frozen one; ``changes`` are of its file."""
    fields: dict[str, Any] = {
        "store": {},
        "inference": [{"model_path": "m", "model": name} for name in ("writer", "checker")]
        + [{"model_path": "m", "model": "judge", "frozen": True}],
        "learners": LEARNERS,
        "role_models": {"writer": "writer", "checker": "checker"},
        "runners": [{"entrypoint": "agent:solve"}],
        "eval": {"tasks": "tasks.jsonl"},
        **changes,
    }
    return validate_settings(RunSettings, fields, "run.yaml")


def job_of(settings: RunSettings) -> TrainJob:
    return parse_job(settings, "run.yaml")


def test_the_trial_task_is_published_as_the_learner_publishes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": 1}) + "\n")
    settings = run_of()
    trial = describe_trial(settings, job_of(settings), "default")
    assert (trial.model, trial.role_models) == ("writer", {"writer": "writer", "checker": "checker"})
    assert set(trial.served_models) == {"writer", "checker", "judge"}
    assert trial.wanted_rewards == [WantedReward("learners.1.reward", "checker", "checker")]
