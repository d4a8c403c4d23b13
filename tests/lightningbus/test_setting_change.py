"""Changes of a learner's settings while training goes on."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lightningbus.learner.settings.algorithm import ActorSettings, OptimSettings
from lightningbus.learner.settings.learner import STEP_FIELDS, LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.setting_change import (
    CHANGEABLE,
    SettingChange,
    apply_changes,
    change_learner,
    find_first_steps,
)
from lightningbus.run.settings.sources import to_fields

LEARNER = LearnerSettings.model_validate(
    {"model_path": "model", "tasks": "t.jsonl", "actor": {"optim": {"lr": 1e-4, "weight_decay": 0.1}}}
)


def test_a_change_keeps_all_other_settings() -> None:
    changed = change_learner(LEARNER, {"actor": {"optim": {"lr": 1e-5}}, "groups_per_step": 4})
    assert (changed.actor.optim.lr, changed.actor.optim.weight_decay, changed.groups_per_step) == (1e-5, 0.1, 4)
    same = {"actor": {"optim": {"lr": 1e-4}}, "groups_per_step": LEARNER.groups_per_step}
    assert change_learner(changed, same).model_dump() == LEARNER.model_dump()
    assert changed.step_fields != LEARNER.step_fields == change_learner(changed, same).step_fields
    assert changed.with_step_fields(LEARNER.step_fields).actor == LEARNER.actor


def test_the_settings_that_are_named_exist() -> None:
    assert set(LearnerSettings.model_fields) > CHANGEABLE | STEP_FIELDS


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"actr": {}}, "learner.actr: no such setting; did you mean 'actor'?"),
        ({"model_path": "other"}, "learner.model_path cannot be changed while training goes on; these can: actor, "),
        ({"lora": {"lora_rank": 4}}, "learner.lora cannot be changed while training goes on"),
        ({"algorithm": {"adv_estimator": "gae"}}, "learner.algorithm.adv_estimator cannot be changed while"),
        ({"actor": {"use_kl_loss": True}}, "learner.actor.use_kl_loss cannot be changed while training goes on"),
        ({"actor": {"optim": {"lr": "fast"}}}, "the changed settings: actor.optim.lr: Input should be a valid number"),
        ({"actor": {"optim": {"rate": 1}}}, "actor.optim.rate: no such setting"),
        ({"group_size": 4}, "learner.group_size cannot be changed while training goes on"),
        ({"groups_per_step": 0}, "groups_per_step must be at least 1"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        change_learner(LEARNER, fields)
    assert sentence in str(raised.value)


def test_learners_of_one_run_keep_what_they_share() -> None:
    assert change_learner(LEARNER, {"max_attempts": 1}).max_attempts == 1
    with pytest.raises(UserError, match=r"learner\.max_attempts cannot be changed in a run of several learners"):
        change_learner(LEARNER, {"max_attempts": 1}, is_alone=False)
    assert change_learner(LEARNER, {"groups_per_step": 3}, is_alone=False).groups_per_step == 3


def test_a_change_is_dated_by_the_first_step_that_was_made_with_it() -> None:
    """Not by its wish: a step was in progress, or the learner was being started again."""

    def change(model: str, lr: float) -> SettingChange:
        fields = {"actor": {"optim": {"lr": lr}}}
        return SettingChange(model=model, learner=fields, reason="", changed_at=datetime.now(UTC))

    def start(model: str, step: int, lr: float) -> tuple[str, int, dict[str, Any]]:
        return model, step, {"actor": {"optim": {"lr": lr, "weight_decay": 0.1}}, "seed": 0}

    changes = [change("a", 1e-5), change("b", 1e-5), change("a", 1e-4), change("a", 1e-6)]
    starts = [start("a", 1, 1e-4), start("a", 7, 1e-5), start("a", 9, 1e-4), start("b", 1, 1e-4), start("b", 3, 1e-5)]
    assert [each.first_step for each in find_first_steps(changes, starts)] == [7, 3, 9, None]


def test_an_object_of_settings_changes_the_fields_that_are_set() -> None:
    fields = to_fields({"actor": ActorSettings(optim=OptimSettings(lr=1e-5)), "groups_per_step": 2})
    assert fields == {"actor": {"optim": {"lr": 1e-5}}, "groups_per_step": 2}
    assert change_learner(LEARNER, fields).actor.optim.weight_decay == 0.1


def test_the_changes_of_an_earlier_start_are_made_again() -> None:
    other = LEARNER.model_copy(update={"model": "small"})

    def change(model: str, lr: float) -> SettingChange:
        fields = {"actor": {"optim": {"lr": lr}}}
        now = datetime.now(UTC)
        return SettingChange(model=model, learner=fields, reason="it is time", changed_at=now)

    changes = [change("policy", 1e-5), change("small", 1e-6), change("policy", 1e-7), change("gone", 1.0)]
    changed = apply_changes([LEARNER, other], changes)
    assert [(learner.model, learner.actor.optim.lr) for learner in changed] == [("policy", 1e-7), ("small", 1e-6)]
    assert changed[0].model_path == Path("model")
