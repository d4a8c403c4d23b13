"""The files a version consists of: all weights, or LoRA's adapters and, once, the base they are added to."""

from pathlib import Path
from typing import Any

from lightningbus.learner.trainer import Trainer

WEIGHTS = "weights.safetensors"
BASE = "base.safetensors"


def write_weights(trainer: Trainer, path: Path) -> None:
    """Write the trained weights in the form that nodes load: `lightningbus.inference.engine.worker.weight_transfer`."""
    if (adapters := trainer.adapters()) is not None:
        tensors, scale = adapters
        _save(tensors, path, {"scale": str(scale)})
    else:
        write_full(trainer, path)


def write_full(trainer: Trainer, path: Path) -> None:
    """Write all weights: without adapters the version itself, with them their base."""
    trainer.write_weights(path)


def _save(tensors: dict[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Replace an older file instead of writing into it: it may be served, or linked, under another name."""
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}")
    save_file(tensors, temporary, metadata)
    temporary.replace(path)
