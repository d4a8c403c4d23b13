"""LoRA adapters in PEFT's directory format, which vLLM's own loader reads."""

import json
import os
import shutil
from pathlib import Path

import msgspec

from lightningbus.schemas.weights.adapters import A_SUFFIX, B_SUFFIX
from lightningbus.schemas.weights.safetensors_header import (
    METADATA,
    InvalidSafetensorsError,
    parse_tensors,
    read_header,
)

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def write_directory(adapters: Path, directory: Path, max_rank: int) -> None:
    """Write PEFT's directory for adapters; their file is hard-linked if possible, else copied.

    Raises `OSError`, or `ValueError` for adapters that cannot be loaded or have a rank above ``max_rank``.
    """
    rank, scale, modules = inspect_adapter(adapters)
    if rank > max_rank:
        raise ValueError(f"adapters of rank {rank} do not fit: set lora.rank of the node to {rank} at least")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        os.link(adapters, directory / WEIGHTS)
    except OSError:  # another file system, or one without links
        shutil.copyfile(adapters, directory / WEIGHTS)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": scale * rank, "target_modules": modules, "bias": "none"}
    (directory / CONFIG).write_text(json.dumps(config))


def inspect_adapter(adapters: Path) -> tuple[int, float, list[str]]:
    """Return rank, scale of the product, and last name components of the adapted modules; raises `ValueError`."""
    header = read_header(adapters)
    tensors = parse_tensors(header, adapters.stat().st_size)
    ranks = {tensor.shape[0] for name, tensor in tensors.items() if name.endswith(A_SUFFIX)}
    if len(ranks) != 1 or not all(name.endswith((A_SUFFIX, B_SUFFIX)) for name in tensors):
        raise InvalidSafetensorsError(f"{adapters.name} does not hold LoRA adapters of one rank: {sorted(ranks)}")
    header_fields = msgspec.json.decode(header[8:], type=dict[str, msgspec.Raw])
    try:
        scale = float(msgspec.json.decode(header_fields[METADATA], type=dict[str, str])["scale"])
    except (KeyError, msgspec.DecodeError, ValueError) as error:
        raise InvalidSafetensorsError(f"{adapters.name} does not say the scale of its adapters") from error
    modules = {name.removesuffix(A_SUFFIX).rpartition(".")[2] for name in tensors if name.endswith(A_SUFFIX)}
    (rank,) = ranks
    return rank, scale, sorted(modules)
