"""Changes of a learner's settings while a training job goes on."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lightningbus.common.unknown_settings import describe_unknown
from lightningbus.learner.settings.learner import TASK_LIMITS, LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import validate_settings
from lightningbus.run.settings.sources import merge

CHANGEABLE = frozenset({
    *("actor", "algorithm", "credit", "loss_weights", "staleness", "task_selection"),
    *("max_staleness", "max_mismatch", "groups_per_step", "failed_rollouts", "group_timeout_seconds"),
    *("max_failed_groups", *TASK_LIMITS),
})  # fmt: skip
"""Settings of a learner that may change between two steps: none decides which tensors a checkpoint has."""
FIXED = (
    ("algorithm", "adv_estimator"),
    ("actor", "use_kl_loss"),
)
"""Settings in those sections that decide which models a learner holds."""


class SettingChange(BaseModel):
    """A change of a learner's settings between two steps."""

    model_config = ConfigDict(frozen=True)

    model: str = Field(description="model whose learner it is")
    first_step: int | None = Field(default=None, description="first step that was made with it; none: none was yet")
    learner: dict[str, Any] = Field(description="changed settings of the learner, by name")
    before: dict[str, Any] = Field(default={}, description="the same settings before the change")
    reason: str = Field(description="callback that asked for it and its reason, or that the run was resumed")
    changed_at: datetime = Field(description="time of the change")


def is_changeable(names: Sequence[str], *, is_alone: bool) -> bool:
    """Return whether a setting may change, named by its section and the names below it.

    ``is_alone``: whether the run has one learner. Several dispatch the same tasks, and must agree on them.
    """
    is_shared = names[0] in TASK_LIMITS and not is_alone
    return names[0] in CHANGEABLE and tuple(names[:2]) not in FIXED and not is_shared


def change_learner(learner: LearnerSettings, fields: Mapping[str, Any], *, is_alone: bool = True) -> LearnerSettings:
    """Return settings with other values in some fields, as a run file names them; raise `UserError`.

    ``is_alone`` as in `is_changeable`.
    """
    for name in fields:
        if is_changeable([name], is_alone=is_alone):
            continue
        if name in CHANGEABLE:
            raise UserError(f"learner.{name} cannot be changed in a run of several learners: they share it")
        if name in LearnerSettings.model_fields:
            changeable = ", ".join(sorted(CHANGEABLE))
            raise UserError(f"learner.{name} cannot be changed while training goes on; these can: {changeable}")
        raise UserError(f"learner.{name}: {describe_unknown(name, CHANGEABLE)}")
    before = learner.model_dump(mode="json", exclude_unset=True)
    changed = validate_settings(LearnerSettings, merge(before, fields), "the changed settings")
    for section, name in FIXED:
        if getattr(getattr(learner, section), name) != getattr(getattr(changed, section), name):
            raise UserError(f"learner.{section}.{name} cannot be changed while training goes on")
    return changed


def pick_fields(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that settings have in the places of ``fields``."""
    return {
        name: pick_fields(settings[name], value)
        if isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
        else settings.get(name)
        for name, value in fields.items()
    }


def find_first_steps(
    changes: Sequence[SettingChange], starts: Iterable[tuple[str, int, Mapping[str, Any]]]
) -> list[SettingChange]:
    """Note for each change the first step that was made with it.

    ``starts`` are a model, its first step with other settings than the step before, and those settings, in order.
    """
    noted, starts, last = [], list(starts), dict[str, int]()
    for change in changes:
        later = (
            step
            for model, step, settings in starts
            if model == change.model
            and step >= last.get(model, 1)
            and pick_fields(settings, change.learner) == change.learner
        )
        first = next(later, None)
        if first is not None:
            last[change.model] = first
        noted.append(change.model_copy(update={"first_step": first}))
    return noted


def apply_changes(learners: Sequence[LearnerSettings], changes: Sequence[SettingChange]) -> list[LearnerSettings]:
    """Return the settings of learners after the changes of an earlier start; raise `UserError`."""
    changed = {learner.model: learner for learner in learners}
    for change in changes:
        if change.model in changed:
            changed[change.model] = change_learner(changed[change.model], change.learner)
    return list(changed.values())
