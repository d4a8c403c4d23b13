"""LoRA's adapters of a model: which modules may have them, and their names as in the model's own files."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightningbus.learner.engine.weight_writer import make_file_naming, published_model
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.text import name_some
from lightningbus.schemas.weights.adapters import A_SUFFIX, B_SUFFIX, PREFIX

NOT_TEXT = ".*(vision|visual|image|audio|multi_?modal|connector).*"
"""Modules of a model that read something else than text: on text their adapters stay 0, and no engine takes them."""
NUM_NAMED = 2
"""Modules that an error names."""


def lora_state_dict(engine: Any) -> tuple[dict[str, Any], float]:
    """Return every LoRA tensor under its PEFT name, on the CPU, and the factor of their product (alpha / rank).

    The module in a name is called as in the model's own files.
    """
    params, config = engine.get_per_tensor_param(base_sync_done=True)
    tensors = {name: tensor.detach().to("cpu").clone().contiguous() for name, tensor in params}
    return name_as_in_files(published_model(engine), tensors), float(config["lora_alpha"]) / float(config["r"])


def name_as_in_files(model: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Name adapters after the weights that they are added to, as transformers' model is saved."""
    name_in_files = make_file_naming(model)

    def rename(name: str) -> str:
        suffix = next(suffix for suffix in (A_SUFFIX, B_SUFFIX) if name.endswith(suffix))
        weight = name_in_files(f"{name.removeprefix(PREFIX).removesuffix(suffix)}.weight")
        return f"{PREFIX}{weight.removesuffix('.weight')}{suffix}"

    return {rename(name): tensor for name, tensor in tensors.items()}


def make_lora_config(settings: LearnerSettings, config: Any) -> Any:
    """Return PEFT's configuration of the adapters that verl adds to a model of transformers' ``config``."""
    from peft import LoraConfig

    lora = settings.lora
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        target_modules=lora.target_modules,
        exclude_modules=choose_excluded(settings, config),
    )


def choose_excluded(settings: LearnerSettings, config: Any) -> str | None:
    """Return the modules without adapters, whatever the targets are: a pattern for PEFT; None: no modules."""
    if (chosen := settings.verl.model.get("exclude_modules")) is not None:
        return str(chosen)
    return NOT_TEXT if config.get_text_config() is not config else None


def check_targets(model: Any) -> None:
    """Check that each adapter of a PEFT model belongs to one matrix of its files; raise ValueError otherwise.

    transformers keeps the experts of a layer in one parameter. PEFT adapts all of them at once, in a form that no
    inference engine takes, and that is no part of the model's files.
    """
    from peft.tuners.lora import LoraLayer

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    if wrong := list(dict.fromkeys(name_in_base(name) for name, layer in layers if not _is_matrix(layer))):
        names = ", ".join(sorted(set(_linear_names(layers))))
        advice = f"set it to [{names}]" if names else "name linear layers, or train without lora"
        raise ValueError(
            f"lora.target_modules: inference engines cannot take adapters of {name_some(wrong, NUM_NAMED)}, "
            f"which are no matrices of linear layers; {advice}"
        )


def _is_matrix(layer: Any) -> bool:
    import torch

    if isinstance(layer.get_base_layer(), torch.nn.Linear):
        return True
    return getattr(layer, "parameter_name", "") == "weight" and layer.get_base_layer().weight.dim() == 2


def _linear_names(layers: list[tuple[str, Any]]) -> Iterator[str]:
    import torch

    for name, layer in layers:
        if isinstance(layer.get_base_layer(), torch.nn.Linear):
            yield name.rpartition(".")[2]


def name_in_base(name: str) -> str:
    """Return the name of a parameter or module without what PEFT adds to it."""
    return name.removeprefix(PREFIX).replace(".base_layer", "")
