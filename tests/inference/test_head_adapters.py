"""Adapters of the output head in vLLM's CPU build: added to sampled rows, and left out of prompts without any."""

import pytest
import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from lightningbus.inference.engine.worker.head_adapters import add_lora_logits

pytestmark = pytest.mark.unit
RANK, WIDTH, VOCABULARY = 2, 4, 6


def test_prompts_have_logits_where_no_adapter_is_of_the_head() -> None:
    wrapper = PunicaWrapperCPU(16, 4, "cpu")
    wrapper._sampler_indices[:2] = torch.tensor([1, 0])
    wrapper.indices_len = [2] * len(wrapper.indices_len)
    a, b = torch.randn(2, 1, RANK, WIDTH), torch.randn(2, 1, VOCABULARY, RANK)
    sampled, prompt = torch.randn(2, WIDTH), torch.randn(5, WIDTH)

    logits = torch.zeros(2, VOCABULARY)
    add_lora_logits(wrapper, logits, sampled, a, b, 1.0)
    expected = torch.stack([b[1, 0] @ a[1, 0] @ sampled[0], b[0, 0] @ a[0, 0] @ sampled[1]])
    torch.testing.assert_close(logits, expected)

    logits = torch.zeros(5, VOCABULARY)
    with pytest.raises(RuntimeError):  # vLLM's own: a row for each request
        add_lora_logits(wrapper, logits, prompt, a, b, 1.0)
    add_lora_logits(wrapper, logits, prompt, a, torch.zeros_like(b), 1.0)
    assert not logits.any()
