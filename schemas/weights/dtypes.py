"""Number formats of a model's weights, by torch's names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

Dtype = Literal["float32", "bfloat16", "float16"]
"""A format in which versions are published, and in which engines and learners compute."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
AUTO: Literal["auto"] = "auto"
ALIASES: Mapping[str, Dtype] = {"float": "float32", "half": "float16"}
"""Further names that vLLM takes."""


def read_dtype(model_path: Path) -> Dtype:
    """Return the number format that a model's ``config.json`` names; float32 if it names none of `DTYPES`."""
    config: dict[str, Any] = json.loads((model_path / "config.json").read_text("utf-8"))
    text = config.get("text_config") or {}
    names = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
    name = next((str(name).removeprefix("torch.") for name in names if name), "")
    return name if name in DTYPES else "float32"


def choose_engine_dtype(requested: str, stored: Dtype, *, on_gpu: bool) -> Dtype:
    """Return the number format in which an engine holds a model's weights. Pure.

    ``requested``: vLLM's ``--dtype``. With ``auto`` weights keep the format of their files, ``stored``; on a GPU
    float32 becomes bfloat16, as vLLM has it. Raises ValueError for an unknown name.
    """
    name = ALIASES.get(requested, requested)
    if name == AUTO:
        return "bfloat16" if on_gpu and stored == "float32" else stored
    if name not in DTYPES:
        raise ValueError(f"{requested!r} is not a number format: {AUTO}, {', '.join(DTYPES)}")
    return name


def choose_cpu_dtype(stored: Dtype, *, has_bfloat16: bool) -> Dtype:
    """Return the number format in which a CPU computes fast with weights in the format ``stored``, all exact. Pure.

    ``has_bfloat16``: the processor has instructions for bfloat16. What a processor emulates takes ten times as long.
    """
    return stored if stored == "bfloat16" and has_bfloat16 else "float32"


def can_hold(wide: Dtype, narrow: Dtype) -> bool:
    """Return whether every number of the format ``narrow`` is one of ``wide``. Pure."""
    return wide in ("float32", narrow)
