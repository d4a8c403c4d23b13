"""verl's FSDP2 engines, made from our settings: the policy, its frozen reference, and the critic."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from lightningbus.learner.engine.adapters import choose_excluded
from lightningbus.learner.engine.number_formats import choose_formats
from lightningbus.learner.engine.packed_attention import PACKED_SDPA, register_packed_attention
from lightningbus.learner.engine.policy_engine import register_policy_engine
from lightningbus.learner.engine.rounded_weights import RoundedWeights
from lightningbus.learner.engine.shared_attention import register_shared_attention
from lightningbus.learner.engine.verl_checks import uses_flash_attention
from lightningbus.learner.engine.weight_writer import served_dtype
from lightningbus.learner.settings.algorithm import OptimSettings
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.verl_fields import read_fields
from lightningbus.learner.settings.verl_sections import CRITIC_OPTIM, ENGINE, MODEL, OPTIM

STRATEGY = "fsdp2"
ADAM_BETAS = (0.9, 0.99)
"""Decay rates of AdamW's two moments, unless ``verl.optim`` has others."""
EngineKind = Literal["language_model", "value_model"]
VERL_ENGINE_FIELDS = {
    "fsdp_size",
    "param_offload",
    "optimizer_offload",
    "offload_policy",
    "ulysses_sequence_parallel_size",
    "model_dtype",
    "use_no_sync_for_gradient_accumulation",
}
"""Settings that verl's engine configuration has by the same names."""
NEED_IMAGES = ("qwen2_vl", "qwen2_5_vl", "glm4v")
"""Kinds of models that verl computes by the places of patches in images alone."""
NOISE = ("dropout", "pdrop", "jitter")
"""Parts of the names by which configurations have noise in training."""


def make_engine(
    settings: LearnerSettings,
    device: str,
    optim: OptimSettings,
    kind: EngineKind = "language_model",
    frozen: bool = False,
) -> Any:
    """Make an initialised engine that starts from the model at ``model_path``; ``frozen`` ones are never trained.

    A language model computes at weights that are rounded as nodes hold them.

    The platform must have been selected before, see `platform`.
    """
    from transformers import AutoConfig
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    on_gpu, chosen, formats = device == "cuda", settings.engine, choose_formats(settings, device)
    verl_model, verl_engine = read_fields(MODEL, settings.verl.model), read_fields(ENGINE, settings.verl.engine)
    if kind == "value_model":
        verl_optim = read_fields(CRITIC_OPTIM, settings.verl.critic_optim)
    else:
        verl_optim = read_fields(OPTIM, settings.verl.optim)
    precision = {"reduce_dtype": "fp32", "buffer_dtype": "fp32", **(verl_engine.get("mixed_precision") or {})}
    precision["param_dtype"] = formats.computation
    model: dict[str, Any] = {"model_type": kind}
    config = AutoConfig.from_pretrained(settings.model_path, local_files_only=True)
    if kind == "language_model" and not frozen:
        model |= {**settings.lora.model_dump(), "exclude_modules": choose_excluded(settings, config)}
    _compute_in_chunks(has_entropy_gradient=settings.actor.entropy_coeff > 0)
    attention = _choose_attention(chosen, device, find_model_class(config))
    if chosen.share_prefixes and attention != PACKED_SDPA:
        raise ValueError(f"engine.share_prefixes needs attention row by row, and this model has {attention}")
    if kind == "value_model":
        _load_value_models_with(attention)
    engine = EngineRegistry.new(
        model_type=kind,
        backend=register_policy_engine(device) if kind == "language_model" else STRATEGY,
        model_config=HFModelConfig(
            path=str(settings.model_path),
            use_remove_padding=bool(chosen.use_remove_padding),
            enable_gradient_checkpointing=chosen.is_checkpointing(on_gpu),
            enable_activation_offload=chosen.enable_activation_offload,
            **verl_model | model | {"override_config": _override(config, verl_model, attention)},
        ),
        engine_config=FSDPEngineConfig(
            strategy=STRATEGY,
            use_remove_padding=bool(chosen.use_remove_padding),
            forward_only=frozen and on_gpu,  # pins memory, which needs an accelerator
            **chosen.model_dump(include=VERL_ENGINE_FIELDS),
            # verl compiles the entropy alone, and ours is a loop that must not be compiled.
            **{"use_torch_compile": False, **verl_engine, "mixed_precision": precision},
        ),
        optimizer_config=FSDPOptimizerConfig(
            **{"betas": ADAM_BETAS} | verl_optim | optim.model_dump(),
            total_training_steps=max(settings.max_steps, 1),
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    if optim.lr_warmup_steps and engine.lr_scheduler is not None:
        _warm_up_from_first_step(engine)
    if kind == "language_model":
        engine.rounded_weights = RoundedWeights(
            engine,
            served_dtype(settings.model_path, formats.weights),
            is_rounded_by_engine=formats.computation == formats.weights,
            merges_adapters=settings.weights.merge_adapters,
        )
    return engine


def _compute_in_chunks(*, has_entropy_gradient: bool) -> None:
    """Compute log-probabilities and entropy from some tokens' logits at a time, without a float32 copy of all.

    verl calls the first where there is no flash-attention, and it is called for several tokens at a place. Without an
    entropy bonus nothing is kept for its gradient.
    """
    from verl.utils import torch_functional
    from verl.workers.engine import fsdp

    from lightningbus.learner.engine.token_log_probs import entropy_from_logits, log_probs_from_logits

    def choose(logits: Any, labels: Any, inplace_backward: bool = True) -> Any:
        if labels.dim() == logits.dim():  # which flash-attention's cross-entropy does not take
            return log_probs_from_logits(logits, labels)
        return torch_functional.logprobs_from_logits(logits, labels, inplace_backward)

    torch_functional.logprobs_from_logits_v2 = log_probs_from_logits
    engines: Any = fsdp.transformer_impl
    engines.logprobs_from_logits = choose
    torch_functional.entropy_from_logits = _entropy_with_gradient if has_entropy_gradient else entropy_from_logits


def _entropy_with_gradient(logits: Any) -> Any:
    """Compute ``float32[...]`` from ``[..., vocabulary]``, in nats, by verl's chunked function."""
    from verl.utils.torch_functional import entropy_from_logits_with_chunking

    return entropy_from_logits_with_chunking(logits.flatten(0, -2)).view(logits.shape[:-1])


def _warm_up_from_first_step(engine: Any) -> None:
    """Start the warm-up at an nth of the rate for n steps; verl's first step has a rate of 0 and changes nothing."""

    def later(factor: Callable[[int], float]) -> Callable[[int], float]:
        return lambda step: factor(step + 1)

    scheduler = engine.lr_scheduler
    scheduler.lr_lambdas = [later(factor) for factor in scheduler.lr_lambdas]
    scheduler._last_lr = [
        rate * factor(0) for rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(engine.optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate


def find_model_class(config: Any) -> Any:
    """Find transformers' class of a model, as verl loads it; raise ValueError if it cannot be trained on text."""
    from transformers import AutoModelForCausalLM
    from verl.utils import model

    # verl knows no model by this end of its name, such as GPT-2's, and would load it without its head.
    model._architecture_to_auto_class.setdefault("LMHeadModel", AutoModelForCausalLM)
    auto_class: Any = model.get_hf_auto_model_class(config)
    if config.model_type in NEED_IMAGES:
        raise ValueError(
            f"verl trains models of the kind {config.model_type!r} on images alone, and calls of agents are text; "
            "Qwen3-VL and Gemma-3 can be trained on text"
        )
    try:
        return auto_class._model_mapping[type(config)]
    except KeyError:
        raise ValueError(f"transformers has no language model of the kind {config.model_type!r}") from None


def without_noise(config: Any) -> dict[str, Any]:
    """Return the dropouts and jitters of a model's configuration as 0: the policy that sampled had none.

    Those of the part for text stand in a dictionary of their own.
    """

    def zeros(config: Any) -> dict[str, Any]:
        return {
            name: 0.0
            for name, value in config.to_dict().items()
            if any(word in name for word in NOISE) and isinstance(value, float) and value > 0
        }

    text = config.get_text_config()
    return zeros(config) | ({"text_config": zeros(text)} if text is not config else {})


def _override(config: Any, verl_model: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """Return the changes to a model's configuration; those of ``verl.model`` come before ours, but for attention."""
    ours = {**_complete(config), **without_noise(config)}
    theirs: dict[str, Any] = verl_model.get("override_config", {})
    text = {**ours.get("text_config", {}), **theirs.get("text_config", {})}
    return {**ours, **theirs, **({"text_config": text} if text else {}), "attn_implementation": attention}


def _complete(config: Any) -> dict[str, Any]:
    """Return what verl reads of every configuration and some models, such as GPT-NeoX, lack."""
    text = config.get_text_config()
    return {} if hasattr(text, "num_key_value_heads") else {"num_key_value_heads": text.num_attention_heads}


def _choose_attention(settings: EngineSettings, device: str, model_class: Any) -> str:
    """Choose the attention by transformers' name for it."""
    if uses_flash_attention(settings, device):
        return settings.attn_implementation if settings.attn_implementation != "auto" else "flash_attention_2"
    if settings.ulysses_sequence_parallel_size > 1:
        return register_shared_attention()
    return "eager" if settings.attn_implementation == "eager" else name_sdpa(model_class)


def name_sdpa(model_class: Any) -> str:
    """Name torch's attention for a class of models: row by row, unless the class brings attentions of its own."""
    return register_packed_attention() if model_class._supports_attention_backend else "sdpa"


def _load_value_models_with(attention: str) -> None:
    """Load value models with the given attention: verl always asks for flash-attention here."""
    import verl.utils.model
    from transformers import AutoModelForTokenClassification

    def load(local_path: str | Path, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )

    verl.utils.model.load_valuehead_model = load
