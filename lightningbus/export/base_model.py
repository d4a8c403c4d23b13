"""The model that training started from: its name on the Hub, and its licence."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lightningbus.run.settings.hub_models import is_hub_name

CARD = "README.md"
LICENSE_FIELDS = ("license", "license_name", "license_link")
_CACHED = re.compile(r"models--(.+)")
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.S)


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Public name of a base model, never a path of this machine."""

    name: str
    license: Mapping[str, str] = field(default_factory=dict)
    """The Hub's metadata of its licence; empty: unknown."""

    @property
    def is_on_hub(self) -> bool:
        """Whether the name is that of a repository of the Hub."""
        return is_hub_name(self.name)


def read_base_model(directory: Path, name: str | None = None) -> BaseModel:
    """Read a model directory's own metadata; ``name`` is the user's name for it.

    Without one, the name is that of the Hub where the directory is of the Hub's cache or its configuration has it, else
    the last part of the path.
    """
    base_name = name or _name_in_cache(directory) or _name_in_configuration(directory) or directory.resolve().name
    metadata = _read_metadata(directory)
    license_ = {field: str(metadata[field]) for field in LICENSE_FIELDS if isinstance(metadata.get(field), str)}
    return BaseModel(base_name, license_)


def _name_in_cache(directory: Path) -> str | None:
    """Parse the name in ``models--OWNER--NAME/snapshots/COMMIT``."""
    for part in reversed(directory.absolute().parts):
        if match := _CACHED.fullmatch(part):
            return match[1].replace("--", "/", 1)
    return None


def _name_in_configuration(directory: Path) -> str | None:
    try:
        name = json.loads((directory / "config.json").read_text("utf-8")).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return name if isinstance(name, str) and is_hub_name(name) and not Path(name).exists() else None


def _read_metadata(directory: Path) -> dict[str, Any]:
    """Read the Hub's metadata at the top of a model's card; empty where there is none."""
    try:
        match = _FRONT_MATTER.match((directory / CARD).read_text("utf-8"))
        metadata = yaml.safe_load(match[1]) if match else None
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return metadata if isinstance(metadata, dict) else {}
