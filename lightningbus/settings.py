"""A whole run in one YAML file: what `lightningbus up -c run.yaml` reads."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.sizes import StreamSizes
from inference.settings import InferenceSettings
from learner.settings import LearnerSettings
from lightningbus.roles import UserError
from runners.settings import RunnerSettings
from store.settings import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

M = TypeVar("M", bound=BaseModel)


class BusSettings(BaseModel):
    """The broker: an embedded nats-server, or one that is already there."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(None, description="use this NATS server instead of starting one")
    host: str = Field("127.0.0.1", description="address the embedded server listens on")
    port: int = Field(4222, ge=0, le=65535, description="its port; 0 takes a free one")
    sync: str = Field(
        "2m", description="how long what was written may wait for the disk; 'always' survives a power loss"
    )
    access: Path | None = Field(
        None,
        description="directory `lightningbus bus users` wrote: the server's users and TLS, and the keys of each role",
    )
    open: bool = Field(
        False, description="listen beyond loopback though there are no users: for a network nobody else is on"
    )
    streams: StreamSizes = StreamSizes()


class HeldOut(BaseModel):
    """Problems the model is never trained on; answered before and after, greedily and sampled."""

    model_config = ConfigDict(extra="forbid")

    tasks: Path = Field(description="JSONL of tasks, as `lightningbus publish` takes them")
    samples: int = Field(2, ge=1, description="sampled answers to each")
    deadline: float = Field(120.0, gt=0, description="seconds an evaluation may take")
    agent: str = Field("default", description="agent that answers them")
    best_reachable: float = Field(1.0, description="what a perfect policy gets, for comparison")


class RunSettings(BaseModel):
    """Every role of a run on this machine; leave one out and it is not started here."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field("run", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="name of the run, and of its directory")
    runs: Path = Field(Path("runs"), description="where run directories are made")
    bus: BusSettings = BusSettings()
    store: StoreSettings | None = None
    inference: list[InferenceSettings] = []
    learner: LearnerSettings | None = None
    runners: list[RunnerSettings] = []
    heldout: HeldOut | None = Field(None, description="what `lightningbus train` measures itself on")


def load(kind: type[M], path: Path) -> M:
    """Settings from a YAML or JSON file; raises `UserError` naming the field that is wrong."""
    return checked(kind, fields_of(path), str(path))


def fields_of(path: Path) -> dict[str, Any]:
    """What a YAML or JSON file holds, unchecked; raises `UserError` if it holds no fields."""
    try:
        fields = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, days that are none, lists without end
        raise UserError(f"{path} cannot be read as YAML: {type(error).__name__}: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path} is not a settings file: it holds no fields")
    return fields


def checked(kind: type[M], fields: "Mapping[str, Any]", source: str) -> M:
    """Settings from fields; raises `UserError` naming the first field that is wrong."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first, more = error.errors()[0], error.error_count() - 1
        field = ".".join(str(part) for part in first["loc"]) or kind.__name__
        also = f" (and {more} more)" if more else ""
        raise UserError(f"{source}: {field}: {first['msg']}{also}") from error
