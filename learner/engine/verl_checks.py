"""Checks of engine settings that cannot work on this machine, before a model is loaded."""

import importlib
import importlib.util
from typing import Any

from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.model_config import read_text_config
from lightningbus.learner.settings.verl import OptimizerClass
from lightningbus.learner.settings.verl_fields import check_verl

ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
EIGHT_BIT_HINT = "; set verl.optim.optimizer_impl to torchao.optim or bitsandbytes.optim"
RECURRENT_FIELDS = ("mamba_", "ssm_", "linear_conv", "state_size", "layers_block_type")
"""Beginnings of what a configuration has of a model whose layers carry a state from token to token."""


def check_engine(settings: LearnerSettings, device: str, num_ranks: int) -> None:
    """Run all checks of a learner that starts here; raise ValueError."""
    check_verl(settings)
    check_device(settings.engine, device)
    check_ranks(settings, device, num_ranks)
    check_optimizers(settings)


def check_ranks(settings: LearnerSettings, device: str, num_ranks: int, *, knows_packages: bool = True) -> None:
    """Check the settings against the model and the number of ranks; raise ValueError.

    ``knows_packages``: the learner's are those of this environment.
    """
    engine = settings.engine
    text = read_text_config(settings.model_path)
    _check_divisions(engine, text, num_ranks)
    if engine.ulysses_sequence_parallel_size > 1 and knows_packages:
        _check_windows(engine, text, device)
    if engine.use_remove_padding or engine.ulysses_sequence_parallel_size > 1:
        _check_packing(text)
    if engine.share_prefixes and (carries_state(text) or _has_windows(text)):
        raise ValueError("engine.share_prefixes needs a model of full attention alone: leave it out")


def check_optimizers(settings: LearnerSettings) -> None:
    """Check that the optimisers can be imported; raise ValueError."""
    for setting, optimizer in settings.verl.optimizers.items():
        _check_optimizer(setting, optimizer)


def check_device(engine: EngineSettings, device: str) -> None:
    """Check the settings against the device and installed packages; raise ValueError."""
    if device == "cuda":
        if engine.attn_implementation.startswith("flash") and not has_flash_attention():
            raise ValueError(f"engine.attn_implementation: {engine.attn_implementation} needs the package flash-attn")
        return
    names = ("param_offload", "optimizer_offload", "offload_policy", "enable_activation_offload")
    offloads = [name for name in names if getattr(engine, name)]
    if offloads:
        raise ValueError(f"engine.{offloads[0]} needs a GPU: without one all lies in host memory")
    if engine.attn_implementation.startswith("flash"):
        raise ValueError(f"engine.attn_implementation: {engine.attn_implementation} needs a GPU")


def has_flash_attention() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("flash_attn") is not None


def uses_flash_attention(engine: EngineSettings, device: str) -> bool:
    """Return whether ``attn_implementation`` is flash-attention, or ``auto`` means it on this device."""
    name = engine.attn_implementation
    return name.startswith("flash") or (name == "auto" and device == "cuda" and has_flash_attention())


def _check_divisions(engine: EngineSettings, config: dict[str, Any], num_ranks: int) -> None:
    if 0 < engine.fsdp_size < num_ranks and num_ranks % engine.fsdp_size:
        raise ValueError(f"engine.fsdp_size ({engine.fsdp_size}) must divide the number of ranks ({num_ranks})")
    size = engine.ulysses_sequence_parallel_size
    if size == 1:
        return
    if engine.attn_implementation == "eager":
        raise ValueError("engine.ulysses_sequence_parallel_size above 1 needs sdpa or flash-attention, not eager")
    if num_ranks % size:
        raise ValueError(
            f"engine.ulysses_sequence_parallel_size ({size}) must divide the number of ranks ({num_ranks})"
        )
    heads = config.get("num_attention_heads", size)
    if heads % size:
        raise ValueError(
            f"engine.ulysses_sequence_parallel_size ({size}) must divide the model's attention heads ({heads})"
        )


def _check_windows(engine: EngineSettings, config: dict[str, Any], device: str) -> None:
    if not uses_flash_attention(engine, device) and _has_windows(config):
        raise ValueError(
            "engine.ulysses_sequence_parallel_size above 1 needs flash-attention for this model: with sdpa ranks share "
            "layers of full attention alone"
        )


def _has_windows(config: dict[str, Any]) -> bool:
    """Return whether some layers do not attend to all earlier tokens."""
    layers = config.get("layer_types")
    if layers:
        return set(layers) != {"full_attention"}
    return bool(config.get("sliding_window")) and bool(config.get("use_sliding_window", True))


def carries_state(config: dict[str, Any]) -> bool:
    """Return whether a configuration, ``config.json`` or its text part, has layers beside attention."""
    others = set(config.get("layer_types") or []) - ATTENTION_LAYERS
    return bool(others) or any(name.startswith(RECURRENT_FIELDS) for name in config)


def _check_packing(config: dict[str, Any]) -> None:
    if carries_state(config):
        raise ValueError(
            "engine.use_remove_padding must be false for this model: its layers carry a state from token to token, and "
            "from one packed row into the next"
        )


def _check_optimizer(setting: str, optimizer: OptimizerClass) -> None:
    try:
        module = importlib.import_module(optimizer.module)
    except ImportError as error:
        raise ValueError(f"{setting}.optimizer_impl: {optimizer.module} cannot be imported: {error}") from error
    if not hasattr(module, optimizer.name):
        hint = EIGHT_BIT_HINT if "8bit" in optimizer.name.lower() else ""
        raise ValueError(f"{setting}.optimizer: {optimizer.module} has no {optimizer.name!r}{hint}")
