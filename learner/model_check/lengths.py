"""Lengths that a configuration names, beyond which a model computes otherwise: windows, chunks, original positions."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

NAMES = (
    "sliding_window",
    "window_size",
    "attention_window_size",
    "attention_chunk_size",
    "original_max_position_embeddings",
    "floor_scale",
)
"""Fields of configurations, also inside ``rope_parameters``; masks and positions depend on these numbers alone."""
DYNAMIC, POSITIONS = "dynamic", "max_position_embeddings"
"""A kind of RoPE that changes beyond another field's length."""
SHORT = 16
"""Length that a probe exceeds in most of its rows."""


def find_lengths(config: Any) -> list[int]:
    """List the lengths of the part for text, shortest first."""
    fields = config.get_text_config().to_dict()
    return sorted(holder[name] for holder, name in _find_fields(fields, _choose_names(fields)))


def read_lengths(model_path: Path) -> list[int]:
    """List the lengths of a model's configuration, shortest first; none of one that transformers cannot read."""
    from transformers import AutoConfig

    try:
        return find_lengths(AutoConfig.from_pretrained(model_path, local_files_only=True))
    except Exception:  # a configuration's code may raise anything; loading the model says what
        return []


def shorten(config: Any) -> None:
    """Set all longer lengths to `SHORT`: the same computation, with its changes where a probe reaches them."""
    text = config.get_text_config()
    fields = {name: deepcopy(getattr(text, name)) for name in text.to_dict() if hasattr(text, name)}
    for holder, name in _find_fields(fields, _choose_names(fields)):
        holder[name] = min(holder[name], SHORT)
    for name, value in fields.items():
        if value != getattr(text, name):
            setattr(text, name, value)


def _choose_names(fields: dict[str, Any]) -> Sequence[str]:
    rope = fields.get("rope_parameters") or {}
    is_dynamic = any(part.get("rope_type") == DYNAMIC for part in (rope, *rope.values()) if isinstance(part, dict))
    return (*NAMES, POSITIONS) if is_dynamic else NAMES


def _find_fields(holder: dict[str, Any], names: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in holder.items():
        if name in names and isinstance(value, int) and value > 0:
            yield holder, name
        elif isinstance(value, dict) and (name.startswith("rope_") or name.endswith("attention")):  # a kind of layers
            yield from _find_fields(value, names)
