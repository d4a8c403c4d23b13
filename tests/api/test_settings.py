"""Keyword arguments become settings of a run file."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest

from lightningbus.api.settings import PATHS, EvaluateSettings, TrainSettings, build_run_settings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings

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
        ({"max_steps": "many"}, "settings: learner.max_steps: "),
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
