"""A request of Anthropic's Messages API as a chat. Pure.

Source: https://docs.anthropic.com/en/api/messages.
"""

import json
from collections.abc import Iterator
from typing import Any

API_FIELDS = frozenset({
    "cache_control", "container", "context_management", "mcp_servers", "messages", "metadata", "output_config",
    "output_format", "service_tier", "stop_sequences", "stream", "system", "thinking", "tool_choice", "tools",
})  # fmt: skip
"""Fields of this API; all others mean the same in a chat, or are the engine's own."""


def chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat that a request stands for; raises ValueError with a sentence for the agent."""
    if not isinstance(body.get("messages"), list):
        raise ValueError("the request has no list of messages")
    request = {name: value for name, value in body.items() if name not in API_FIELDS and value is not None}
    request |= {"messages": _messages(body), "stream": bool(body.get("stream"))}
    request["stream_options"] = {"include_usage": True}
    choice = body.get("tool_choice") or {}
    schema = (body.get("output_format") or (body.get("output_config") or {}).get("format")) or {}
    mapped = {
        "stop": body.get("stop_sequences") or None,
        "tools": [_tool(tool) for tool in body.get("tools") or ()] or None,
        "tool_choice": _choice(choice) if body.get("tools") else None,
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
        "response_format": _format(schema) if schema.get("type") == "json_schema" else None,
    }
    last = request["messages"][-1] if request["messages"] else {}
    if last.get("role") == "assistant" and "tool_calls" not in last:  # the answer goes on from these words
        request |= {"add_generation_prompt": False, "continue_final_message": True}
    return {**request, **{name: value for name, value in mapped.items() if value is not None}}


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := body.get("system"):
        text = system if isinstance(system, str) else "\n\n".join(str(block.get("text") or "") for block in system)
        messages.append({"role": "system", "content": text})
    for message in body["messages"]:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise ValueError("a message has the role user or assistant")
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
        elif isinstance(content, list) and all(isinstance(block, dict) for block in content):
            messages += (
                _assistant_messages(content)
                if message["role"] == "assistant"
                else _user_messages(message["role"], content)
            )
        else:
            raise ValueError("a message's content is text or a list of blocks")
    return messages


def _assistant_messages(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the model said before: thoughts, text and calls in one message."""
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise ValueError(f"a block of type {kind!r} is not known here; send text and tool uses")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    yield message


def _user_messages(role: str, blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of tools, a message each, then what else was said."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block.get("content"))}
        elif kind == "text":
            parts.append({"type": "text", "text": str(block.get("text") or "")})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _image(block.get("source") or {})}})
        else:
            raise ValueError(f"a block of type {kind!r} is not known here; send text, images and tool results")
    if all(part["type"] == "text" for part in parts):
        if parts:
            yield {"role": role, "content": "".join(part["text"] for part in parts)}
    else:
        yield {"role": role, "content": parts}


def _result(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if any(block.get("type") != "text" for block in content):
        raise ValueError("a tool's result is text here; images and documents are not passed on")
    return "".join(str(block.get("text") or "") for block in content)


def _image(source: dict[str, Any]) -> str:
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url") or "")


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        raise ValueError("a tool of the vendor's runs there, not here; give the agent one of its own")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _choice(choice: dict[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return {"any": "required", "none": "none"}.get(str(kind), "auto")


def _format(output_format: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": output_format.get("schema")}}
