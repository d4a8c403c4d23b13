"""LoRA adapters as tensors: PEFT's names, and the products that are added to weights."""

from collections.abc import Iterator
from typing import Any

PREFIX = "base_model.model."
"""Beginning of a tensor's name."""
A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


def compute_products(adapters: Any, scale: float) -> Iterator[tuple[str, Any]]:
    """Yield the name of each adapted weight with what is added to it, ``scale * B A`` in float32.

    LoRA, arXiv:2106.09685, section 4.1. ``adapters`` is an open safetensors file of torch tensors.
    """
    for name in adapters.keys():  # noqa: SIM118 - not a dict
        if name.endswith(A_SUFFIX):
            module = name.removesuffix(A_SUFFIX)
            product = adapters.get_tensor(module + B_SUFFIX).float() @ adapters.get_tensor(name).float()
            yield f"{module.removeprefix(PREFIX)}.weight", scale * product
