"""What a small model learned from is what it is asked: both, as the text its chat template makes of them."""

import json
from collections.abc import Iterable
from typing import Any

from transformers import Qwen2Tokenizer

from tests.examples.endpoint import module

model = module("small_model", "model")


def prompts_of(conversations: Iterable[dict[str, Any]]) -> list[str]:
    """The prompt of each demonstration: ``{"messages": [..., answer], "tools": [...]}``."""
    tokenizer = Qwen2Tokenizer(eos_token=model.END)
    tokenizer.chat_template = model.CHAT_TEMPLATE
    return [model.asked_and_answered(tokenizer, model.conversation(json.dumps(one)))[0] for one in conversations]


def prompts_asked(requests: Iterable[dict[str, Any]]) -> list[str]:
    """The prompt of each request that an engine got."""
    end = [{"role": "assistant", "content": ""}]
    return prompts_of({"messages": one["messages"] + end, "tools": one.get("tools")} for one in requests)
