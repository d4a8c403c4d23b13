"""LoRA adapters merged into the weights that they are added to."""

from pathlib import Path


def merge_adapters(model: Path, weights: Path, adapters: Path) -> None:
    """Merge PEFT's directory ``adapters`` into ``weights``, the file of the model directory ``model``.

    Names, data types and tied tensors of the file stay as they are; each sum is computed in float32.
    """
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    with safe_open(weights, "pt") as file:
        dtypes = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - no mapping
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    merged = PeftModel.from_pretrained(base, str(adapters)).merge_and_unload().state_dict()
    temporary = weights.with_name(f".{weights.name}")
    save_file(
        {name: merged[name].to(dtype).contiguous() for name, dtype in dtypes.items()}, temporary, {"format": "pt"}
    )
    temporary.replace(weights)
