"""Settings as keyword arguments: the common ones by name, all others in the sections of a run file.

A section is a mapping, or an object of `lightningbus.settings`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.common.name_suggestions import suggest_name
from lightningbus.common.unknown_settings import find_own_name
from lightningbus.graders.settings import GraderSettings
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.hub_models import find_cached_models
from lightningbus.run.settings.run_file import (
    ROLE_SECTIONS,
    BusSettings,
    RunSettings,
    load_fields,
    validate_settings,
)
from lightningbus.run.settings.sources import merge, to_fields
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.settings import StoreSettings


class SectionSettings(TypedDict, total=False):
    """Sections of a run file, each with any of its settings; see the settings page."""

    bus: BusSettings | Mapping[str, Any]
    store: StoreSettings | Mapping[str, Any]
    inference: InferenceSettings | Mapping[str, Any] | Sequence[InferenceSettings | Mapping[str, Any]]
    """One node, or several."""
    runners: RunnerSettings | Mapping[str, Any] | Sequence[RunnerSettings | Mapping[str, Any]]
    """One runner, or several."""


class EvaluateSettings(SectionSettings, total=False):
    """Keyword arguments of `evaluate` beside its own."""

    name: str
    """Name of the run and its directory."""
    runs: str | os.PathLike[str]
    """Directory of run directories."""
    concurrency: int
    """Rollouts at once of each runner."""
    max_model_len: int
    """Longest prompt and answer, in tokens."""
    deadline: float
    """Seconds without the end of a rollout, beyond its timeout, after which an evaluation is given up."""
    samples: int
    """Sampled answers to each held-out task."""
    pass_reward: float
    """Reward from which on an answer has passed, for pass@k."""
    learner: LearnerSettings | Mapping[str, Any]
    """Settings of the learner; in an evaluation it publishes the model."""


class TrainSettings(EvaluateSettings, total=False):
    """Keyword arguments of `train` beside its own."""

    group_size: int
    """Rollouts of a task in a step."""
    groups_per_step: int
    """Tasks in a step."""
    max_steps: int
    """Training steps."""
    max_staleness: int
    """Most versions a token may lag behind."""
    lr: float
    """Learning rate of the policy."""
    lora_rank: int
    """Rank of a LoRA adapter; 0 trains all weights."""
    seed: int
    """Order of the tasks, and what is random in training."""
    eval: EvalSettings | Mapping[str, Any]
    """Settings of the held-out evaluations."""
    auditor: AuditorSettings | Mapping[str, Any]
    """Settings of the auditor; without it none runs."""
    grader: GraderSettings | Mapping[str, Any]
    """Settings of the grader, which gives the rewards; without it agents give them."""
    budget: BudgetSettings | Mapping[str, Any]
    """Time and money after which training ends; without it there is no limit."""


PATHS: dict[str, tuple[str, ...]] = {
    "name": ("name",),
    "runs": ("runs",),
    "concurrency": ("runners", "concurrency"),
    "max_model_len": ("inference", "max_model_len"),
    "deadline": ("eval", "deadline"),
    "group_size": ("learner", "group_size"),
    "groups_per_step": ("learner", "groups_per_step"),
    "max_steps": ("learner", "max_steps"),
    "max_staleness": ("learner", "max_staleness"),
    "lr": ("learner", "actor", "optim", "lr"),
    "lora_rank": ("learner", "lora", "lora_rank"),
    "seed": ("learner", "seed"),
    "samples": ("eval", "samples"),
    "pass_reward": ("eval", "pass_reward"),
}
"""Short name -> where it stands in a run file."""
LISTS = ("inference", "runners")
"""Sections of a run file that are lists."""


RunFile: TypeAlias = RunSettings | Mapping[str, Any] | str | os.PathLike[str]
"""A whole run file: an object of `lightningbus.settings`, its fields, or its path."""


def build_run_settings(
    base: Mapping[str, Any],
    settings: Mapping[str, Any],
    kind: type,
    run_file: RunFile | None = None,
    recorded: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> RunSettings:
    """Build the settings of a run from a run file, a function's arguments (``base``) and its keyword arguments.

    A later one of them wins, and ``recorded``, the fields of the start that is resumed, comes first. ``kind``: the
    TypedDict of the keyword arguments. ``names``: the function's own arguments by the field that each gives. Raises
    `UserError` that names a wrong one and the nearest right. The ports of bus and store are free ones unless given.
    """
    known = kind.__annotations__
    fields = merge({"bus": {"port": 0}, "store": {"http_port": 0}}, recorded or {}, read_run_file(run_file))
    for name, value in base.items():
        fields = _merge_section(fields, name, value)
    for name, value in sorted(settings.items(), key=lambda item: item[0] in PATHS):  # a short name wins over a section
        if name not in known:
            raise UserError(f"{name}: no such setting; {_suggest(name, known)}")
        path = PATHS.get(name, (name,))
        value = to_fields(value)
        for part in reversed(path[1:]):
            value = {part: value}
        fields = _merge_section(fields, path[0], value)
    short_names = {".".join(PATHS[name]): name for name in settings if name in PATHS}
    checked = validate_settings(RunSettings, fields, "settings", names={**(names or {}), **short_names})
    return find_cached_models(checked)


def read_run_file(run_file: RunFile | None) -> dict[str, Any]:
    """Return the fields of a run file, without those at their defaults; raises `UserError` for one that holds none."""
    if isinstance(run_file, str | os.PathLike):
        return load_fields(Path(run_file))
    fields = to_fields(run_file or {})
    if not isinstance(fields, dict):
        raise UserError(f"settings: give a run file, not a {type(run_file).__name__}")
    return fields


def _merge_section(fields: dict[str, Any], section: str, value: Any) -> dict[str, Any]:
    """Merge a section; a mapping for a list goes to each entry, and a list replaces them, each above the first one."""
    if section not in LISTS:
        return merge(fields, {section: value})
    entries = fields.get(section) or [{}]
    if isinstance(value, Mapping):
        return {**fields, section: [merge(entry, value) for entry in entries]}
    if not isinstance(value, Sequence) or not all(isinstance(entry, Mapping) for entry in value):
        raise UserError(f"{section}: give a dict of settings, or a list of dicts")
    return {**fields, section: [merge(entries[0], entry) for entry in value]}


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    """Word the nearest keyword argument, or the section that has a setting of this name."""
    if (keyword := find_own_name(name, known)) in known:
        return f"did you mean {keyword!r}?"
    for section, (_, model) in ROLE_SECTIONS.items():
        if name in model.model_fields and section in known:
            return f"write {section}={{{name!r}: ...}}"
    return suggest_name(name, known) or f"known are {', '.join(sorted(known))}"


def runs_directory(settings: Mapping[str, Any], run_file: Mapping[str, Any] | None = None) -> Path:
    """Return the directory of run directories; ``run_file``: the fields of one."""
    return Path(settings.get("runs", (run_file or {}).get("runs", RunSettings.model_fields["runs"].default)))
