"""Settings as keyword arguments: the common ones by name, all others in the sections of a run file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import ROLE_SECTIONS, RunSettings, validate_settings
from lightningbus.run.settings.sources import merge


class SectionSettings(TypedDict, total=False):
    """Sections of a run file, each with any of its settings; see the settings page."""

    bus: Mapping[str, Any]
    store: Mapping[str, Any]
    inference: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    """One node, or several."""
    runners: Mapping[str, Any] | Sequence[Mapping[str, Any]]
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
    learner: Mapping[str, Any]
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
    eval: Mapping[str, Any]
    """Settings of the held-out evaluations."""
    auditor: Mapping[str, Any]
    """Settings of the auditor; without it none runs."""
    grader: Mapping[str, Any]
    """Settings of the grader, which gives the rewards; without it agents give them."""
    budget: Mapping[str, Any]
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
}
"""Short name -> where it stands in a run file."""
LISTS = ("inference", "runners")
"""Sections of a run file that are lists."""


def build_run_settings(base: Mapping[str, Any], settings: Mapping[str, Any], kind: type) -> RunSettings:
    """Build the settings of a run from those of a function (``base``) and its keyword arguments, which win.

    ``kind``: the TypedDict of the keyword arguments. Raises `UserError` that names a wrong one and the nearest right.
    The ports of bus and store are free ones unless given.
    """
    known = kind.__annotations__
    fields = merge({"bus": {"port": 0}, "store": {"http_port": 0}}, base)
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{name}: no such setting; {_suggest(name, known)}")
        path = PATHS.get(name, (name,))
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        for part in reversed(path[1:]):
            value = {part: value}
        fields = _merge_section(fields, path[0], value)
    return validate_settings(RunSettings, fields, "settings")


def _merge_section(fields: dict[str, Any], section: str, value: Any) -> dict[str, Any]:
    """Merge a section; a mapping for a list goes to each entry, and a list replaces them, each above the first one."""
    if section not in LISTS:
        return merge(fields, {section: value})
    entries = fields.get(section, [{}])
    if isinstance(value, Mapping):
        return {**fields, section: [merge(entry, value) for entry in entries]}
    if not isinstance(value, Sequence) or not all(isinstance(entry, Mapping) for entry in value):
        raise UserError(f"{section}: give a dict of settings, or a list of dicts")
    return {**fields, section: [merge(entries[0], entry) for entry in value]}


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    """Word the nearest keyword argument, or the section that has a setting of this name."""
    for section, (_, model) in ROLE_SECTIONS.items():
        if name in model.model_fields and section in known:
            return f"write {section}={{{name!r}: ...}}"
    return suggest_name(name, known) or f"known are {', '.join(sorted(known))}"


def runs_directory(settings: Mapping[str, Any]) -> Path:
    """Return the directory of run directories."""
    return Path(settings.get("runs", RunSettings.model_fields["runs"].default))
