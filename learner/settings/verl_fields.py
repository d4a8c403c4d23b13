"""Checks of a mapping of ours against verl's own dataclass. It imports verl only where something is set."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.verl_sections import ACTOR, CRITIC_OPTIM, ENGINE, MODEL, OPTIM, Section

FOR_ADAPTERS = ("exclude_modules", "lora_adapter_path")


def check_verl(settings: LearnerSettings) -> None:
    """Check all mappings of ``verl``; raise ValueError with a sentence that names the field."""
    verl = settings.verl
    for section, values in (
        (ENGINE, verl.engine),
        (MODEL, verl.model),
        (ACTOR, verl.actor),
        (OPTIM, verl.optim),
        (CRITIC_OPTIM, verl.critic_optim),
    ):
        read_fields(section, values)
    for key in FOR_ADAPTERS:
        if key in verl.model and not settings.lora.lora_rank:
            raise ValueError(f"verl.model.{key} needs lora.lora_rank above 0: without adapters it changes nothing")


def read_fields(section: Section, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with verl's types; raise ValueError with a sentence that names the field."""
    if not values:
        return {}
    hints = field_types(section.config)
    for key in values:
        _check_key(section, key, hints)
        for inner in values[key] if isinstance(values[key], dict) else ():
            _check_key(section, f"{key}.{inner}", hints)
    return {key: _read_value(section, key, value, hints[key]) for key, value in values.items()}


@cache
def field_types(config: str) -> dict[str, Any]:
    """Return the types of the fields of verl's dataclass."""
    import verl.workers.config

    dataclass = getattr(verl.workers.config, config)
    hints = get_type_hints(dataclass)
    return {each.name: hints[each.name] for each in fields(dataclass) if not each.name.startswith("_")}


def _check_key(section: Section, key: str, hints: Mapping[str, Any]) -> None:
    if key.partition(".")[0] not in hints:
        valid = [each for each in hints if section.find_refusal(each) is None]
        nearest = ", ".join(difflib.get_close_matches(key, valid, n=3, cutoff=0.0))
        raise ValueError(f"{section.where}.{key}: {section.config} of verl has no such field; nearest: {nearest}")
    reason = section.find_refusal(key)
    if reason is not None:
        raise ValueError(f"{section.where}.{key} cannot be set: {reason}")


def _read_value(section: Section, key: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter[Any](section.types.get(key, hint)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (section.where, key, *first["loc"]) if part != "[key]")
        raise ValueError(f"{place}: {first['msg']}, not {first['input']!r}") from error
