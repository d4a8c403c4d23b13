"""The files a version consists of: all weights, or LoRA's adapters and, once, the base they are added to."""

from pathlib import Path
from typing import Any

WEIGHTS = "weights.safetensors"
BASE = "base.safetensors"


def write_weights(trainer: Any, path: Path) -> None:
    """What the trainer trains, as nodes load it: see `inference.weight_engine`."""
    from safetensors.torch import save_file

    if (adapters := trainer.adapters()) is not None:
        tensors, scale = adapters
        save_file(tensors, path, {"scale": str(scale)})
    else:
        write_base(trainer, path)


def write_base(trainer: Any, path: Path) -> None:
    """All weights: without adapters the version itself, with them what they are added to."""
    from safetensors.torch import save_file

    save_file(trainer.weights(), path)
