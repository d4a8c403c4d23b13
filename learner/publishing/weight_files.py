"""The files a version consists of: all weights, or LoRA's adapters and, once, the base they are added to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightningbus.learner.trainer import Trainer
from lightningbus.schemas.weights.safetensors_header import PYTORCH

WEIGHTS = "weights.safetensors"
BASE = "base.safetensors"


def write_weights(trainer: Trainer, path: Path) -> None:
    """Write the trained weights in the form that nodes load: `lightningbus.inference.engine.worker.weight_transfer`."""
    if (adapters := trainer.adapters()) is not None:
        write_adapters(*adapters, path)
    else:
        write_full(trainer, path)


def write_full(trainer: Trainer, path: Path) -> None:
    """Write all weights: without adapters the version itself, with them their base."""
    trainer.write_weights(path)


def write_adapters(tensors: Mapping[str, Any], scale: float, path: Path) -> None:
    """Write LoRA's tensors under PEFT's names, and the factor of their product.

    An older file is replaced instead of written into: it may be served, or linked, under another name.
    """
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}")
    save_file(dict(tensors), temporary, {**PYTORCH, "scale": str(scale)})
    temporary.replace(path)
