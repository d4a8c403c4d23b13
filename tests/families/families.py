"""Tiny random models of published families, by transformers' names for them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "head_dim": 16,
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "num_attention_heads": 2,
    "num_position_embeddings": 16, "image_size": 56, "patch_size": 14,
}  # fmt: skip
FALCON_LACKS = ("num_key_value_heads", "head_dim")


@dataclass(frozen=True, slots=True)
class Family:
    """One family: the changes that make its configuration tiny."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    """In place of, and beside, `SIZES`; None drops a size that the family does not know."""
    vision: dict[str, Any] = field(default_factory=dict)
    """The part for images, of a family that has one; ``config`` is of the part for text then."""


FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama"),
        Family("mistral", {"sliding_window": 16}),
        Family("ministral", {"sliding_window": 16}),
        Family("qwen2"),
        Family("qwen3"),
        Family("gemma", {"num_key_value_heads": 1}),
        Family("gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 32, "num_hidden_layers": 4}),
        Family("gemma3_text", {"sliding_window": 16, "query_pre_attn_scalar": 32, "num_hidden_layers": 6}),
        Family("phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5, "intermediate_size": 512}),
        Family("phi3", {"sliding_window": 16}),
        Family("glm"),
        Family("glm4"),
        Family("olmo"),
        Family("olmo2"),
        Family("olmo3", {"sliding_window": 16, "num_hidden_layers": 4}),
        Family("smollm3"),
        Family("granite", {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0}),
        Family("starcoder2"),
        Family("stablelm"),
        Family("cohere", {"logit_scale": 0.25}),
        Family("cohere2", {"sliding_window": 16, "num_hidden_layers": 4}),
        Family("helium"),
        Family("nemotron"),
        Family("exaone4", {"sliding_window": 16, "num_hidden_layers": 4}),
        Family("ernie4_5"),
        Family("hunyuan_v1_dense"),
        Family("seed_oss"),
        Family("arcee"),
        Family("apertus"),
        Family("gpt_neox", {"num_key_value_heads": None}),
        Family(
            "falcon",
            {"num_kv_heads": 2, "new_decoder_architecture": True, "num_key_value_heads": None, "head_dim": None},
        ),
        Family("bloom", {"n_layer": 2, "n_head": 4, "num_key_value_heads": None}),
        Family("opt", {"ffn_dim": 256, "word_embed_proj_dim": 128, "num_key_value_heads": None}),
        Family("gpt2", {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512, "num_key_value_heads": None}),
        Family("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        Family("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
        Family("qwen3_moe", EXPERTS),
        Family("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
        Family("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        Family("phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        Family("glm4_moe", ROUTED),
        Family("dots1", ROUTED),
        Family("deepseek_v3", {**ROUTED, **LATENT, "topk_method": "noaux_tc"}),
        Family("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, "head_dim": 64}),
        Family("afmoe", {**EXPERTS, "num_shared_experts": 1, "num_dense_layers": 1, "sliding_window": 16}),
        Family("lfm2", {"layer_types": ["conv", "full_attention"], "conv_dim": 128, "block_dim": 128}),
        Family(
            "qwen3_next",
            {
                **EXPERTS,
                "shared_expert_intermediate_size": 64,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 32,
                "linear_value_head_dim": 32,
            },
        ),
        Family("gemma4_text", {"sliding_window": 16, "num_hidden_layers": 6, "vocab_size_per_layer_input": 512}),
        Family(
            "qwen2_5_vl",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}},
            {**VISION, "out_hidden_size": 128, "fullatt_block_indexes": [0]},
        ),
        Family("qwen3_vl", {}, {**VISION, "out_hidden_size": 128, "deepstack_visual_indexes": [0]}),
        Family("gemma3", {"sliding_window": 16, "num_hidden_layers": 6}, {**VISION, "num_hidden_layers": 1}),
    )
}


def make_config(family: Family) -> Any:
    """Make the configuration of a family's tiny model."""
    from transformers import AutoConfig

    sizes = {name: value for name, value in {**SIZES, **family.config}.items() if value is not None}
    if family.vision:
        return AutoConfig.for_model(family.model_type, text_config=sizes, vision_config=family.vision)
    return AutoConfig.for_model(family.model_type, **sizes)


def save_tiny_model(family: Family, directory: Path, seed: int = 0) -> Path:
    """Save a random float32 model of a family, whose next tokens differ in probability by some nats."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(seed)
    config = make_config(family)
    has_images = type(config) in AutoModelForImageTextToText._model_mapping
    auto_class: Any = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
    model: Any = auto_class.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.08)
            elif "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, 0.1)
    model.save_pretrained(directory)
    return directory
