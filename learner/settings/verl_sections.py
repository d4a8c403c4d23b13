"""Fields of verl's dataclasses that cannot be set by verl's name, each with the reason. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from lightningbus.learner.settings.algorithm import ActorSettings, LoraSettings, OptimSettings
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.schemas.weights.dtypes import Dtype

BATCHES = "the learner divides its batches itself, by actor.ppo_max_token_len_per_gpu"
FROM_MODEL_PATH = "verl reads it from model_path"
LOG_PROBS = "the learner computes log-probabilities and entropy in chunks itself"
NOT_USED = "the learner does not use it: its training steps are its own, not those of verl's trainer"


@dataclass(frozen=True, slots=True)
class Section:
    """One of verl's dataclasses, set by a mapping of ours."""

    where: str
    """The setting that holds the mapping."""
    config: str
    """Name of the class, among those of verl's workers."""
    named: Mapping[str, str]
    """Settings of ours, by verl's field; ``field.key`` is a key of a field that is a mapping."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by verl's field."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Types that are narrower than verl's, by verl's field."""
    is_closed: bool = False
    """Whether only the fields in ``types`` can be set."""

    def find_refusal(self, key: str) -> str | None:
        """Return why a field of verl's cannot be set by its name; None: it can."""
        if key in self.named:
            return f"it has a setting of its own, {self.named[key]}"
        if self.is_closed and "." not in key and key not in self.types:
            return NOT_USED
        return self.refused.get(key)


def _same(place: str, settings: type[BaseModel]) -> dict[str, str]:
    return {name: f"{place}.{name}" for name in settings.model_fields}


def _optim(where: str, place: str) -> Section:
    named = {
        "grad_clip": f"{place}.clip_grad",
        "warmup_style": f"{place}.lr_scheduler_type",
        "lr_warmup_steps_ratio": f"{place}.lr_warmup_steps",
        "total_training_steps": "max_steps",
    }
    return Section(
        where,
        "FSDPOptimizerConfig",
        named=_same(place, OptimSettings) | named,
        refused={"zero_indexed_step": "a warm-up begins above a rate of 0 here in any case"},
    )


ENGINE = Section(
    "verl.engine",
    "FSDPEngineConfig",
    named=_same("engine", EngineSettings) | {"mixed_precision.param_dtype": "engine.dtype"},
    refused={
        "strategy": "the learner makes checkpoints, metrics and learning rates with fsdp2 alone (docs/scale.md)",
        "forward_only": "the learner sets it for the frozen reference",
        "use_orig_params": "it is for FSDP1",
        "turbo_config": "it is for the strategy fsdp_turbo",
        "router_replay": "engines do not report the experts of a token",
        "qat": "weights are published in the number format of the model",
        "use_fused_kernels": LOG_PROBS,
        "entropy_from_logits_with_chunking": LOG_PROBS,
        "entropy_from_logits_chunk_size": LOG_PROBS,
        "use_dynamic_bsz": BATCHES,
        "max_token_len_per_gpu": BATCHES,
        "micro_batch_size_per_gpu": BATCHES,
        "infer_max_token_len_per_gpu": BATCHES,
        "infer_micro_batch_size_per_gpu": BATCHES,
    },
    types={"mixed_precision": dict[Literal["reduce_dtype", "buffer_dtype"], Dtype]},
)
MODEL = Section(
    "verl.model",
    "HFModelConfig",
    named=_same("lora", LoraSettings)
    | {
        "path": "model_path",
        "use_remove_padding": "engine.use_remove_padding",
        "enable_gradient_checkpointing": "engine.enable_gradient_checkpointing",
        "enable_activation_offload": "engine.enable_activation_offload",
        "override_config.attn_implementation": "engine.attn_implementation",
    },
    refused={
        "model_type": "the learner sets it for the trained model and the critic",
        "trust_remote_code": "tokenizer and export load a model without code of its own",
        "custom_chat_template": "the engine renders prompts; the learner trains on its tokens",
        "target_parameters": "nodes serve adapters of modules alone",
        "lora": "it is for Megatron",
        "mtp": "the learner does not train heads for several tokens",
        "tiled_mlp": "verl's FSDP2 engine does not read it",
        "use_fused_kernels": LOG_PROBS,
        "fused_kernel_options": LOG_PROBS,
        "local_path": FROM_MODEL_PATH,
        "hf_config_path": FROM_MODEL_PATH,
        "local_hf_config_path": FROM_MODEL_PATH,
        "tokenizer_path": FROM_MODEL_PATH,
        "local_tokenizer_path": FROM_MODEL_PATH,
        "load_tokenizer": FROM_MODEL_PATH,
        "hf_config": FROM_MODEL_PATH,
        "generation_config": FROM_MODEL_PATH,
        "tokenizer": FROM_MODEL_PATH,
        "processor": FROM_MODEL_PATH,
        "architectures": FROM_MODEL_PATH,
    },
)
ACTOR = Section(
    "verl.actor",
    "FSDPActorConfig",
    named=_same("actor", ActorSettings)
    | {
        "clip_ratio": "actor.clip_ratio_low",
        "grad_clip": "actor.optim.clip_grad",
        "rollout_n": "group_size",
        "checkpoint": "checkpoint_dir",
        "fsdp_config": "verl.engine",
        "model_config": "verl.model",
        "ulysses_sequence_parallel_size": "engine.ulysses_sequence_parallel_size",
        "use_remove_padding": "engine.use_remove_padding",
        "use_torch_compile": "verl.engine.use_torch_compile",
        "entropy_checkpointing": "verl.engine.entropy_checkpointing",
    },
    types={
        "clip_ratio_c": Annotated[float, Field(gt=1)],
        "tau_pos": Annotated[float, Field(gt=0)],
        "tau_neg": Annotated[float, Field(gt=0)],
    },
    is_closed=True,
)
POLICY_LOSS = Section(
    "actor.policy_loss_options",
    "PolicyLossConfig",
    named={"loss_mode": "actor.policy_loss", "rollout_correction": "algorithm.rollout_correction"},
)
OPTIM, CRITIC_OPTIM = _optim("verl.optim", "actor.optim"), _optim("verl.critic_optim", "critic.optim")
SECTIONS = (ENGINE, MODEL, ACTOR, POLICY_LOSS, OPTIM, CRITIC_OPTIM)
