"""Settings of a supervised training: a learner without rollouts, from flags and the learner of a run file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings, load_run_fields, validate_settings
from lightningbus.run.settings.sources import merge

SECTIONS = ("bus", "store", "trackers")
"""Sections of a run file that are used beside its learner."""
DEFAULT_LEARNER = {"actor": {"loss_agg_mode": "token-mean", "optim": {"lr": 1e-5}}}
"""Fields of a learner that no run file describes: the usual mean over tokens, and a larger step than RL's."""


@dataclass(frozen=True, slots=True)
class SupervisedRequest:
    """Flags of a supervised training; None: the run file's value, else the default."""

    name: str
    path: Path
    """File of the demonstrations."""
    config: Path | None = None
    model_path: Path | None = None
    epochs: int = 1
    batch_size: int | None = None
    lr: float | None = None


def build_supervised_settings(request: SupervisedRequest) -> RunSettings:
    """Build the settings of a run with a store and a learner that trains on the file alone; raise `UserError`."""
    fields = load_run_fields(request.config) if request.config is not None else {}
    if fields.get("learners"):
        raise UserError(f"{request.config}: it has several learners: give a run file with one `learner`")
    learner = dict(fields.get("learner") or DEFAULT_LEARNER)
    learner.pop("tasks", None)
    supervised: dict[str, Any] = {"path": str(request.path.resolve())}
    if request.batch_size is not None:
        supervised["batch_size"] = request.batch_size
    changes: dict[str, Any] = {"groups_per_step": 0, "supervised": supervised}
    if request.model_path is not None:
        changes["model_path"] = str(request.model_path)
    if request.lr is not None:
        changes["actor"] = {"optim": {"lr": request.lr}}
    if "model_path" not in changes and "model_path" not in learner:
        raise UserError("the model to train is not known: give --model-path, or a run file with --config")
    kept: Mapping[str, Any] = {name: fields[name] for name in SECTIONS if name in fields}
    run = {"bus": {"port": 0}, "store": {}, **kept, "name": request.name, "learner": merge(learner, changes)}
    return validate_settings(RunSettings, run, str(request.config or "settings"))


def with_steps(settings: RunSettings, num_demonstrations: int, epochs: int) -> RunSettings:
    """Return the settings with as many steps as ``epochs`` passes over the demonstrations take."""
    learner = settings.learner
    assert learner is not None and learner.supervised is not None
    num_steps = -(-num_demonstrations * epochs // learner.supervised.batch_size)
    return settings.model_copy(update={"learner": learner.model_copy(update={"max_steps": num_steps})})
