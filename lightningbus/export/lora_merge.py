"""LoRA adapters merged into the weights that they are added to."""

import json
from pathlib import Path

from lightningbus.inference.engine.peft import CONFIG, WEIGHTS
from lightningbus.schemas.weights.adapters import compute_products


def merge_adapters(weights: Path, adapters: Path) -> None:
    """Add each product of PEFT's directory ``adapters`` to its tensor of the file ``weights`` (arXiv:2106.09685, 4.1).

    Names and data types of the file stay as they are; each sum is computed in float32. Raises ValueError for adapters
    of a tensor that the file does not have.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    config = json.loads((adapters / CONFIG).read_text("utf-8"))
    scale = config["lora_alpha"] / config["r"]
    merged = load_file(weights)
    with safe_open(adapters / WEIGHTS, "pt") as file:
        for name, product in compute_products(file, scale):
            if name not in merged:
                raise ValueError(f"adapters of {name} have no weights to be added to")
            merged[name] = (merged[name].float() + product).to(merged[name].dtype)
    temporary = weights.with_name(f".{weights.name}")
    save_file(merged, temporary, {"format": "pt"})
    temporary.replace(weights)
