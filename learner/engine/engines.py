"""verl's FSDP2 engines, made from our settings: the policy, its frozen reference, and the critic."""

from pathlib import Path
from typing import Any, Literal

from learner.engine.packed_attention import register_packed_attention
from learner.settings.algorithm import OptimSettings
from learner.settings.learner import LearnerSettings

EngineKind = Literal["language_model", "value_model"]


def make_engine(
    settings: LearnerSettings,
    device: str,
    optim: OptimSettings,
    kind: EngineKind = "language_model",
    frozen: bool = False,
) -> Any:
    """An initialised engine that starts from the model at ``model_path``; ``frozen`` ones are never trained.

    The platform must have been selected before, see `platform`.
    """
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    on_gpu = device == "cuda"
    precision = None if on_gpu else dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    model: dict[str, Any] = {"model_type": kind}
    if kind == "language_model" and not frozen:
        model |= settings.lora.model_dump()
    _compute_in_chunks()
    if kind == "value_model":
        _load_value_models_without_flash_attention()
    engine = EngineRegistry.new(
        model_type=kind,
        backend="fsdp2",
        model_config=HFModelConfig(
            path=str(settings.model_path),
            use_remove_padding=settings.engine.use_remove_padding,
            enable_gradient_checkpointing=on_gpu,
            override_config={"attn_implementation": register_packed_attention()},
            **model,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            mixed_precision=precision,
            use_torch_compile=on_gpu,
            use_remove_padding=settings.engine.use_remove_padding,
            use_no_sync_for_gradient_accumulation=settings.engine.use_no_sync_for_gradient_accumulation,
            forward_only=frozen and on_gpu,  # which pins its memory, and without an accelerator there is none to pin
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=optim.lr,
            lr_scheduler_type=optim.lr_scheduler_type,
            min_lr_ratio=optim.min_lr_ratio,
            lr_warmup_steps=optim.lr_warmup_steps,
            total_training_steps=max(settings.max_steps, 1),
            weight_decay=optim.weight_decay,
            betas=optim.betas,
            clip_grad=optim.clip_grad,
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def lora_state_dict(engine: Any) -> tuple[dict[str, Any], float]:
    """Every LoRA tensor under its PEFT name, on the CPU, and the factor of their product (alpha / rank)."""
    params, config = engine.get_per_tensor_param(base_sync_done=True)
    tensors = {name: tensor.detach().to("cpu").clone().contiguous() for name, tensor in params}
    return tensors, float(config["lora_alpha"]) / float(config["r"])


def _compute_in_chunks() -> None:
    """Log-probabilities and entropy from some tokens' logits at a time, without a float32 copy of all.

    verl calls the first where there is no flash-attention.
    """
    from verl.utils import torch_functional

    from learner.engine.token_log_probs import log_probs_from_logits

    torch_functional.logprobs_from_logits_v2 = log_probs_from_logits
    torch_functional.entropy_from_logits = _entropy_from_logits


def _entropy_from_logits(logits: Any) -> Any:
    """``float32[...]`` of ``[..., vocabulary]``, in nats, by verl's chunked function."""
    from verl.utils.torch_functional import entropy_from_logits_with_chunking

    return entropy_from_logits_with_chunking(logits.flatten(0, -2)).view(logits.shape[:-1])


def _load_value_models_without_flash_attention() -> None:
    """verl asks for flash-attention by name here, whatever the settings say; there is none on a CPU."""
    import verl.utils.model
    from transformers import AutoModelForTokenClassification

    def load(local_path: str | Path, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=register_packed_attention(),
            trust_remote_code=trust_remote_code,
        )

    verl.utils.model.load_valuehead_model = load
