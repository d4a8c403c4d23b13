"""The shape of a model, read from its configuration: modules are made without their weights."""

import re
from typing import Any

from lightningbus.learner.engine.memory_plan import ModelShape


def read_shape(config: Any, target_modules: str | list[str] = "all-linear") -> ModelShape:
    """Read the shape of a transformers configuration; the modules get LoRA adapters, as PEFT names them.

    Raises ValueError if transformers has no causal language model for it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return shape_of(model, target_modules)


def shape_of(model: Any, target_modules: str | list[str] = "all-linear") -> ModelShape:
    """Measure the shape of a transformers model, on any device, the meta device too."""
    text = model.config.get_text_config()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    blocks = [module for module in model.modules() if type(module).__name__ in (model._no_split_modules or ())]
    block = max((_count(module) for module in blocks), default=sum(sizes.values()))
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = output is not None and embedding.weight is output.weight
    apart = [] if is_tied else [_count(module) for module in (embedding, output) if module is not None]
    experts = next((value for name in EXPERTS if (value := getattr(text, name, None))), 0)
    expert_width = (getattr(text, "moe_intermediate_size", None) or text.intermediate_size) if experts else 0
    return ModelShape(
        num_params=sum(sizes.values()),
        num_expert_params=sum(size for name, size in sizes.items() if ".experts." in name),
        block_params=block,
        group_params=max([block, *apart]),
        root_params=sum(sizes.values()) - sum(map(_count, blocks)) - sum(apart),
        adapter_width=_adapter_width(model, target_modules),
        num_embedding_params=0 if is_tied else _count(embedding),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate=_dense_width(model, text, experts),
        vocabulary=text.vocab_size,
        experts=experts,
        experts_per_token=text.num_experts_per_tok if experts else 0,
        expert_intermediate=expert_width,
        has_qk_norm=any(".q_norm." in name for name in sizes),
    )


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that configurations have for the number of routed experts."""


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _dense_width(model: Any, text: Any, experts: int) -> int:
    """Count features of the MLP that every token passes: the only one, or a shared expert."""
    if not experts:
        return int(text.intermediate_size)
    shared = [module for name, module in model.named_modules() if name.endswith(("shared_expert", "shared_experts"))]
    return max((module.gate_proj.out_features for module in shared), default=0)


def _adapter_width(model: Any, target_modules: str | list[str]) -> int:
    """Sum input and output features of the modules with adapters: chosen by end of name, or by a pattern of all of it.

    ``all-linear`` is every linear module but the output embedding, routers, and experts: an adapter for each, in
    gates and up-projections, which are one matrix, of twice the rank. Other patterns find linear modules alone.
    """
    import torch

    def is_target(name: str, module: Any) -> bool:
        if target_modules == "all-linear":
            return module is not model.get_output_embeddings()
        if isinstance(target_modules, str):
            return re.fullmatch(target_modules, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in target_modules)

    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    width = sum(module.in_features + module.out_features for name, module in linear if is_target(name, module))
    return width + (_expert_adapter_width(model) if target_modules == "all-linear" else 0)


def _expert_adapter_width(model: Any) -> int:
    """Sum the adapter widths of fused experts ``[experts, out, in]`` and of routers ``[experts, in]``."""
    width = 0
    for name, parameter in model.named_parameters():
        if name.endswith(".experts.gate_up_proj"):
            width += 2 * parameter.shape[0] * sum(parameter.shape[1:])
        elif name.endswith(".experts.down_proj"):
            width += parameter.shape[0] * sum(parameter.shape[1:])
        elif name.endswith(".mlp.gate.weight"):
            width += sum(parameter.shape)
    return width
