"""A model's ``config.json``."""

import json
from pathlib import Path
from typing import Any


def read_text_config(model_path: Path) -> dict[str, Any]:
    """Read a model's ``config.json``; of a model with images too, the part for text."""
    config: dict[str, Any] = json.loads((model_path / "config.json").read_text("utf-8"))
    text: dict[str, Any] = config.get("text_config", config)
    return text
