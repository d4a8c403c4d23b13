"""Models that settings name as on the Hugging Face Hub: their directory in the Hub's cache on this machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_name(name: str) -> bool:
    """Return whether a name has the form of a repository of the Hub: ``owner/name``."""
    return _HUB_NAME.fullmatch(name) is not None


def find_cached_models(settings: RunSettings) -> RunSettings:
    """Replace each ``model_path`` that is a name on the Hub, and no directory, by its directory in the Hub's cache.

    One that is not in the cache stays, and is refused by the checks before a run. Nothing is downloaded.
    """
    changes: dict[str, object] = {
        "inference": [_find_cached(node) for node in settings.inference],
        "learners": [_find_cached(learner) for learner in settings.learners],
    }
    for section in (settings.learner, settings.auditor):
        if section is not None:
            changes["learner" if section is settings.learner else "auditor"] = _find_cached(section)
    is_same = all(value == getattr(settings, name) for name, value in changes.items())
    return settings if is_same else settings.model_copy(update=changes)


def check_model_directories(settings: RunSettings, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise `UserError` for the first ``model_path`` of learners and nodes that is no directory with a model.

    ``names``: what the user calls a field, by its place in a run file.
    """
    sections: list[tuple[str, BaseModel]] = [("learner", each) for each in settings.all_learners]
    sections += [("inference", node) for node in settings.inference]
    for name, section in sections:
        path = getattr(section, "model_path", None)
        if path is not None and not has_model(path):
            place = f"{name}.model_path"
            raise UserError(f"{names.get(place, place)}: {describe_missing_model(path)}")


def has_model(path: Path) -> bool:
    """Return whether a directory has a model's configuration."""
    return (path / "config.json").is_file()


def describe_missing_model(path: Path) -> str:
    """Describe why a directory has no model, and how to get it."""
    if (path / "adapter_config.json").is_file():
        return f"{path} holds LoRA adapters and not their base model: `weights export` without --adapter merges both"
    if path.is_dir():
        return f"{path} holds no model (no config.json)"
    if not is_hub_name(str(path)):
        return f"{path} is no model: there is no such directory"
    return (
        f"{path} is no directory, and no model of that name is in the Hugging Face cache of this machine: "
        f"`hf download {path}` gets it where the Hub can be reached; or give the directory of a model"
    )


def _find_cached(section: BaseModel) -> BaseModel:
    path = getattr(section, "model_path", None)
    if path is None or path.is_dir() or not is_hub_name(str(path)):
        return section
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:  # a host without the roles that read models
        return section
    config = try_to_load_from_cache(str(path), "config.json")
    return section.model_copy(update={"model_path": Path(config).parent}) if isinstance(config, str) else section
