"""What is evaluated: texts by prompt, under which weights. Pure."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from lightningbus.schemas.prompts import digest_of

Texts = Mapping[str, str]
"""Text by name of the prompt."""
KEY_CHARS = 16
ROUND_PATTERN = "^optimize(-v[0-9_]+)?$"
"""What `round_name` gives, as a regular expression."""


def round_name(weight_versions: Mapping[str, int]) -> str:
    """The name of a round, and of the evaluation that its rollouts belong to: ``optimize-v3``, of two models ``-v3_7``.

    Without weight versions ``optimize``.
    """
    versions = "_".join(str(weight_versions[model]) for model in sorted(weight_versions))
    return f"optimize-v{versions}" if versions else "optimize"


def evaluation_key(texts: Texts, weight_versions: Mapping[str, int], sampling: Mapping[str, Any]) -> str:
    """16 hexadecimal digits: part of the ids of rollouts, so that the same evaluation has the same rollouts."""
    content = {
        "prompts": {name: digest_of(text) for name, text in texts.items()},
        "weights": dict(weight_versions),
        "sampling": dict(sampling),
    }
    return _digest(content)


def proposal_key(ordinal: int, texts: Texts, names: list[str]) -> str:
    """16 hexadecimal digits: which proposal of a run it is, made from which texts."""
    return _digest([ordinal, sorted(texts.items()), sorted(names)])


def run_key(settings: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of what decides the course of an optimisation."""
    return _digest(settings)


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()[
        :KEY_CHARS
    ]
