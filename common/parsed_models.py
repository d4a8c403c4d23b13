"""Settings of which there may be one or several: each parsed alone, with one sentence for what is wrong. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from lightningbus.common.unknown_settings import describe_unknown


def parse_model(value: Any, kind: type[BaseModel]) -> Any:
    """Convert a mapping to a model, and return anything else; raise ValueError naming the wrong field."""
    if not isinstance(value, Mapping):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # An unknown setting comes first: one that is misspelt is missing too.
        first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ValueError(f"{name}: {describe_unknown(name, kind.model_fields)}") from error
        problem = str(first.get("ctx", {}).get("error", first["msg"]))
        problem = "it is needed" if first["type"] == "missing" else problem
        raise ValueError(f"{name}: {problem}" if name else problem) from error
