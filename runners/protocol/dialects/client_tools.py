"""Tools of a vendor's API that the agent itself runs, and whose schemas the vendor's models know by heart. Pure."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as any other model has to be told of it."""

    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its input."""
        return {"type": "object", "properties": self.properties, "required": list(self.required)}


def text_properties(*names: str) -> dict[str, dict[str, Any]]:
    """Describe arguments that are texts."""
    return {name: {"type": "string"} for name in names}
