"""Settings of trackers: one section each, with the tracker's own field names."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class JsonlSettings(BaseModel):
    """Lines of JSON in `metrics.jsonl` of the run's directory; it needs no client."""

    model_config = ConfigDict(extra="forbid")


class TensorBoardSettings(BaseModel):
    """Event files for TensorBoard."""

    model_config = ConfigDict(extra="forbid")

    log_dir: Path | None = Field(
        default=None, description="directory of TensorBoard's event files; none: `tensorboard` in the run's directory"
    )


class WandbSettings(BaseModel):
    """A run of Weights & Biases; WANDB_API_KEY and other variables of its own apply too."""

    model_config = ConfigDict(extra="forbid")

    project: str = Field(default="lightningbus", description="name of the project to log to")
    entity: str | None = Field(
        default=None, description="user or team that owns the project; none: the account's default"
    )
    group: str | None = Field(default=None, description="group that the run belongs to")
    tags: list[str] = Field(default=[], description="tags of the run")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="mode of Weights & Biases: online, or offline for a later upload; none: WANDB_MODE, else online",
    )


class MlflowSettings(BaseModel):
    """A run of MLflow; MLFLOW_TRACKING_TOKEN and other variables of its own apply too."""

    model_config = ConfigDict(extra="forbid")

    tracking_uri: str | None = Field(
        default=None, description="URI of the tracking server or database; none: MLFLOW_TRACKING_URI"
    )
    experiment_name: str = Field(
        default="lightningbus", description="name of the experiment to log to; created if it is missing"
    )

    @model_validator(mode="after")
    def _has_server(self) -> Self:
        # MLflow's own default is a database, which the client of lightningbus[mlflow] cannot open.
        address = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            raise ValueError("no server is named: set tracking_uri, or the variable MLFLOW_TRACKING_URI")
        # In a directory a metric is a file: `rollouts` leaves no room for `rollouts/trained`.
        if address.startswith("file:") or (":" not in address and address != "databricks"):
            raise ValueError(f"{address} is a directory, which cannot hold our metrics: name a server or a database")
        return self


class TrackioSettings(BaseModel):
    """A run of trackio; HF_TOKEN and other variables of its own apply too."""

    model_config = ConfigDict(extra="forbid")

    project: str = Field(default="lightningbus", description="name of the project to log to")
    space_id: str | None = Field(default=None, description="Hugging Face Space to log to; none: this machine")


class TrackerSettings(BaseModel):
    """The trackers that get a run's metrics; each but `jsonl` needs the extra of its name."""

    model_config = ConfigDict(extra="forbid")

    jsonl: JsonlSettings | None = Field(
        default=None, description="write `metrics.jsonl` in the run's directory, one JSON object a step: `{}`"
    )
    tensorboard: TensorBoardSettings | None = Field(
        default=None, description="write event files for TensorBoard; `{}` takes the defaults"
    )
    wandb: WandbSettings | None = Field(default=None, description="log to Weights & Biases; `{}` takes the defaults")
    mlflow: MlflowSettings | None = Field(
        default=None, description="log to MLflow; needs tracking_uri or MLFLOW_TRACKING_URI"
    )
    trackio: TrackioSettings | None = Field(default=None, description="log to trackio; `{}` takes the defaults")

    @property
    def enabled(self) -> list[str]:
        """Names of the trackers that have a section."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _installed(self) -> Self:
        for name in self.enabled:
            if name != "jsonl" and find_spec(name) is None:
                raise ValueError(f"{name} is not installed: pip install 'lightningbus[{name}]'")
        return self
