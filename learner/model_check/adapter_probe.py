"""Adapters drawn by chance, and how transformers and PEFT compute a model with them: an engine has to agree.

A learner's own adapters are 0 before its first step, so they would show nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightningbus.learner.engine.adapters import name_as_in_files
from lightningbus.learner.model_check.agreement import find_tolerance, mean_difference
from lightningbus.learner.model_check.check import ModelCheck
from lightningbus.learner.model_check.reference import ReferenceModel
from lightningbus.learner.trainer import Floats

SHARES = (0.1, 0.3, 1.0)
"""Norms of an adapter's product, as shares of that of the weights it is added to; the first that shows is taken.

Rounding to bfloat16 makes 0.002. Where few modules have adapters, they show less.
"""
MIN_EFFECT = 4.0
"""Effect of adapters that shows, in multiples of what rounding explains."""


@dataclass(frozen=True)
class AdapterProbe:
    """Adapters in the form that a learner publishes, and the log-probabilities of a check's rows with them."""

    tensors: Mapping[str, Any]
    scale: float
    """Factor of their product."""
    log_probs: Sequence[Floats]
    """One ``float32[N]`` per row."""
    effect: float
    """Mean difference that the adapters make, in nats per token."""
    is_visible: bool
    """Whether an engine without the adapters would be detected."""


def make_adapter_probe(check: ModelCheck) -> AdapterProbe:
    """Draw adapters of the learner's rank and modules, the same every time, and compute with them.

    ``check`` has the reference's log-probabilities. Takes memory for the model in float32 on the CPU.
    """
    from peft import get_peft_model_state_dict

    assert check.log_probs is not None
    settings = check.settings
    reference = ReferenceModel(settings.model_path)
    adapted = reference.add_adapters(settings)
    for share in SHARES:
        _draw(adapted, share)
        log_probs = reference.log_probs(check.rows)
        effect = mean_difference(log_probs, check.log_probs)
        if is_visible := effect >= MIN_EFFECT * find_tolerance(check.rounding, num_rounded=1):
            break
    tensors = name_as_in_files(adapted.get_base_model(), get_peft_model_state_dict(adapted))
    return AdapterProbe(tensors, settings.lora.lora_alpha / settings.lora.lora_rank, log_probs, effect, is_visible)


def _draw(adapted: Any, share: float) -> None:
    import torch
    from peft.tuners.lora import LoraLayer

    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in adapted.modules():
            if isinstance(layer, LoraLayer):
                (a,), (b,) = layer.lora_A.parameters(), layer.lora_B.parameters()
                a.normal_(generator=random)
                b.normal_(generator=random)
                (scale,) = layer.scaling.values()
                weight: Any = layer.get_base_layer().weight
                b.mul_(share * weight.norm() / (scale * b @ a).norm())
