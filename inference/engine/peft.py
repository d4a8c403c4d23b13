"""Adapters as vLLM's own loader wants them: a directory in PEFT's form."""

import json
import os
import shutil
from pathlib import Path

import msgspec

from schemas.weights.safetensors_header import METADATA, InvalidSafetensors, parse_tensors, read_header

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def write_directory(adapters: Path, directory: Path, most: int) -> None:
    """PEFT's directory for adapters of a rank up to ``most``; their file is linked where that is possible, not copied.

    Raises `ValueError` in a sentence for adapters that cannot be loaded so, `OSError`.
    """
    rank, scale, modules = inspect_adapter(adapters)
    if rank > most:
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
    """Rank, the factor of the product, and the adapted modules' last names; raises `ValueError`."""
    header = read_header(adapters)
    tensors = parse_tensors(header, adapters.stat().st_size)
    ranks = {tensor.shape[0] for name, tensor in tensors.items() if name.endswith(A_SUFFIX)}
    if len(ranks) != 1 or not all(name.endswith((A_SUFFIX, B_SUFFIX)) for name in tensors):
        raise InvalidSafetensors(f"{adapters.name} does not hold LoRA adapters of one rank: {sorted(ranks)}")
    said = msgspec.json.decode(header[8:], type=dict[str, msgspec.Raw])
    try:
        scale = float(msgspec.json.decode(said[METADATA], type=dict[str, str])["scale"])
    except (KeyError, msgspec.DecodeError, ValueError) as error:
        raise InvalidSafetensors(f"{adapters.name} does not say the scale of its adapters") from error
    modules = {name.removesuffix(A_SUFFIX).rpartition(".")[2] for name in tensors if name.endswith(A_SUFFIX)}
    (rank,) = ranks
    return rank, scale, sorted(modules)
