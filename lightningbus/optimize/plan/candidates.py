"""Candidates: texts by prompt, evaluated under fixed weights. Pure."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from lightningbus.schemas.prompts import digest_of

Texts = Mapping[str, str]
"""Text by name of the prompt."""
KEY_CHARS = 16
ROUND_PATTERN = "^optimize(-v[0-9_]+)?$"
"""Regular expression for names that `round_name` returns."""


def round_name(weight_versions: Mapping[str, int]) -> str:
    """Return the name of a round and its evaluation: ``optimize-v3``, with two models ``optimize-v3_7``.

    Without weight versions it is ``optimize``.
    """
    versions = "_".join(str(weight_versions[model]) for model in sorted(weight_versions))
    return f"optimize-v{versions}" if versions else "optimize"


def evaluation_key(texts: Texts, weight_versions: Mapping[str, int], sampling: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify an evaluation; they are part of its rollouts' ids."""
    content = {
        "prompts": {name: digest_of(text) for name, text in texts.items()},
        "weights": dict(weight_versions),
        "sampling": dict(sampling),
    }
    return _digest(content)


def proposal_key(ordinal: int, texts: Texts, names: list[str]) -> str:
    """Return 16 hexadecimal digits that identify a proposal by its number in the run and the texts it was made from."""
    return _digest([ordinal, sorted(texts.items()), sorted(names)])


def run_key(settings: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify the settings of an optimisation."""
    return _digest(settings)


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()[
        :KEY_CHARS
    ]
