"""Parts of a response: reasoning, text and function calls. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/object.
"""

from collections.abc import Iterator
from typing import Any

from lightningbus.runners.protocol.dialects.responses_tools import ResponsesTools
from lightningbus.runners.protocol.thoughts import seal


def item_id(kind: str, head: dict[str, Any], index: int | None = None) -> str:
    """Derive an id in this API's form from the chat's."""
    tail = str(head.get("id", "")).rpartition("-")[2]
    return f"{kind}_{tail}" if index is None else f"{kind}_{tail}_{index}"


def output_items(message: dict[str, Any], id: str, tools: ResponsesTools) -> Iterator[dict[str, Any]]:
    """Convert a chat's answer to items: reasoning, then text, then calls of tools."""
    index = 0
    head = {"id": id}
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        yield reasoning_item(item_id("rs", head, index), str(reasoning))
        index += 1
    text, calls = message.get("content"), message.get("tool_calls") or ()
    if text or not calls:
        yield message_item(item_id("msg", head, index), text or "")
        index += 1
    for call in calls:
        yield tools.call_item(item_id("fc", head, index), call["id"], call["function"])
        index += 1


def reasoning_item(id: str, text: str) -> dict[str, Any]:
    """Build the item of the model's reasoning."""
    content = [{"type": "reasoning_text", "text": text}]
    item = {"id": id, "type": "reasoning", "summary": [], "content": content, "status": "completed"}
    return {**item, "encrypted_content": seal(text)}  # some clients send nothing else back


def message_item(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Build the item of the model's text."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def usage_of(usage: dict[str, Any]) -> dict[str, Any]:
    """Convert the token counts."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.get("total_tokens", 0),
    }
