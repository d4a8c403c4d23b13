"""Settings of a training on a file: a learner without rollouts, from flags and the learner of a run file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import PreferenceSettings, SupervisedSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings, load_run_fields, validate_settings
from lightningbus.run.settings.sources import merge

DataPart = Literal["supervised", "preferences"]
"""Section of a learner that names its file: answers to imitate, or pairs of answers."""
SECTIONS = ("runs", "bus", "store", "trackers")
"""Fields of a run file that are used beside its learner."""
DEFAULT_LEARNERS: Mapping[DataPart, Mapping[str, Any]] = {
    "supervised": {"actor": {"loss_agg_mode": "token-mean", "optim": {"lr": 1e-5}}},
    "preferences": {"actor": {"optim": {"lr": 1e-6}}},
}
"""Fields of a learner that no run file describes: the usual mean over tokens and a larger step than RL's, or RL's."""


@dataclass(frozen=True, slots=True)
class SupervisedRequest:
    """Flags of a training on a file; None: the run file's value, else the default."""

    name: str
    path: Path
    """File of the demonstrations or pairs."""
    config: Path | None = None
    model_path: Path | None = None
    epochs: int = 1
    batch_size: int | None = None
    lr: float | None = None
    part: DataPart = "supervised"
    beta: float | None = None
    """Strength of the tie to the model at the start, of a training on pairs."""


def build_supervised_settings(request: SupervisedRequest) -> RunSettings:
    """Build the settings of a run with a store and a learner that trains on the file alone; raise `UserError`."""
    fields = load_run_fields(request.config) if request.config is not None else {}
    if fields.get("learners"):
        raise UserError(f"{request.config}: it has several learners: give a run file with one `learner`")
    unused = {"tasks", "supervised", "preferences"} - {request.part}
    configured = fields.get("learner") or DEFAULT_LEARNERS[request.part]
    learner = {name: value for name, value in configured.items() if name not in unused}
    flags = {"batch_size": request.batch_size, "beta": request.beta}
    data = {"path": str(request.path.resolve())} | {name: flag for name, flag in flags.items() if flag is not None}
    changes: dict[str, Any] = {"groups_per_step": 0, request.part: data}
    if request.model_path is not None:
        changes["model_path"] = str(request.model_path)
    if request.lr is not None:
        changes["actor"] = {"optim": {"lr": request.lr}}
    if "model_path" not in changes and "model_path" not in learner:
        raise UserError("the model to train is not known: give --model-path, or a run file with --config")
    kept: Mapping[str, Any] = {name: fields[name] for name in SECTIONS if name in fields}
    run = {"bus": {"port": 0}, "store": {}, **kept, "name": request.name, "learner": merge(learner, changes)}
    return validate_settings(RunSettings, run, str(request.config or "settings"))


def data_settings(learner: LearnerSettings) -> SupervisedSettings | PreferenceSettings:
    """Return the section that names the file of a learner without rollouts."""
    settings = learner.preferences if learner.preferences is not None else learner.supervised
    assert settings is not None
    return settings


def with_steps(settings: RunSettings, size: int, epochs: int) -> RunSettings:
    """Return the settings with as many steps as ``epochs`` passes over ``size`` demonstrations or pairs take."""
    learner = settings.learner
    assert learner is not None
    num_steps = -(-size * epochs // data_settings(learner).batch_size)
    return settings.model_copy(update={"learner": learner.model_copy(update={"max_steps": num_steps})})
