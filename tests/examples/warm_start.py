"""What a small model learned from is what it is asked: both, as the text its chat template makes of them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer, models

from tests.examples.endpoint import module

model = module("small_model", "model")
CHATTING = model.chatting(Tokenizer(models.BPE()), context=512)


def prompts_shown(conversations: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The prompts of demonstrations, as ``{"messages": [...], "tools": [...]}``: all before each of the answers."""
    for conversation in conversations:
        before = ""
        for text, says in model.parts(CHATTING, model.conversation(json.dumps(conversation))):
            before += text
            if not says:
                yield before


def prompts_asked(requests: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The prompt of each request that an engine got."""
    for request in requests:
        query = {
            "messages": [*request["messages"], {"role": "assistant", "content": ""}],
            "tools": request.get("tools"),
        }
        yield list(prompts_shown([query]))[-1]
