"""Prompts' log-probabilities beside LoRA in vLLM's CPU build."""

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

add_to_sampled = PunicaWrapperCPU.add_lora_logits


def allow_prompt_logprobs() -> None:
    """Let the engine score several prompts at once, which would end it where the output head may have adapters.

    vLLM adds a head's adapters to one row of logits per request (0.31). A scored prompt has a row for each token.
    """
    PunicaWrapperCPU.add_lora_logits = add_lora_logits  # type: ignore[method-assign, assignment]


def add_lora_logits(
    wrapper: PunicaWrapperCPU,
    y: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    **_: Any,
) -> None:
    """Add a head's adapters as vLLM does, but to no other rows than sampled ones while all adapters of heads are 0."""
    if x.view(-1, x.shape[-1]).shape[0] == len(wrapper.sampler_indices) or b.any():
        add_to_sampled(wrapper, y, x, a, b, scale)
