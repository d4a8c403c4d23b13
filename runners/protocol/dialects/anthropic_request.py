"""A request of Anthropic's Messages API as a chat. Pure.

Source: https://docs.anthropic.com/en/api/messages.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, ClassVar

from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.dialects.base import input_of
from lightningbus.runners.protocol.message_parts import image_part, join_parts, left_out_part, text_part
from lightningbus.runners.protocol.request_fields import (
    MESSAGES,
    MESSAGES_OUTPUT_CONFIG,
    MESSAGES_THINKING,
    MESSAGES_TOOL_CHOICE,
)
from lightningbus.runners.protocol.thoughts import unseal
from lightningbus.runners.protocol.token_history import TokenHistory

BILLING_HEADER = "x-anthropic-billing-header:"
THINKING = frozenset({"adaptive", "disabled", "enabled"})
CHOICES = {"any": "required", "auto": "auto", "none": "none"}
OF_VENDOR = frozenset({
    "advisor_tool_result", "bash_code_execution_tool_result", "code_execution_tool_result", "fallback",
    "mcp_tool_listing", "mcp_tool_result", "mcp_tool_use", "redacted_thinking", "server_tool_use",
    "text_editor_code_execution_tool_result", "tool_search_tool_result", "web_fetch_tool_result",
    "web_search_tool_result",
})  # fmt: skip
"""Types of the model's blocks that are of the vendor's own tools, or encrypted: no model here made or reads them."""


class UnsupportedThreadError(ValueError):
    """A request relies on a conversation kept by the server; its details make the vendor's client send the whole."""

    details: ClassVar[dict[str, Any]] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def chat(body: dict[str, Any], history: TokenHistory, tools: MessagesTools) -> dict[str, Any]:
    """Convert a request with these tools to a chat; raise ValueError with a sentence for the agent.

    Names what it leaves out in the tools' ``left_out``.
    """
    if not isinstance(body.get("messages"), list):
        raise ValueError("the request has no list of messages")
    if body.get("thread"):
        raise UnsupportedThreadError(f"thread {MESSAGES.refused['thread'].reason}")
    MESSAGES.check_refused(body)
    request = {name: value for name, value in body.items() if name not in MESSAGES.names and value is not None}
    request |= {"messages": _messages(body, history, tools), "stream": body.get("stream") or False}
    request["stream_options"] = {"include_usage": True}
    request["return_token_ids"] = True  # the beginning of a stream has the length of the prompt
    choice, config = body.get("tool_choice") or {}, body.get("output_config") or {}
    MESSAGES_OUTPUT_CONFIG.check_known(config)
    MESSAGES_TOOL_CHOICE.check_known(choice)
    mapped = {
        "stop": body.get("stop_sequences") or None,
        "tools": tools.list_loaded(choice.get("name")) or None,
        "tool_choice": _choice(choice, bool(body.get("tools"))) if choice else None,
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") and body.get("tools") else None,
        "reasoning_effort": _effort(body.get("thinking") or {}, config.get("effort")),
        "response_format": _format(body.get("output_format") or config.get("format")),
    }
    last = request["messages"][-1] if request["messages"] else {}
    if last.get("role") == "assistant" and "tool_calls" not in last:  # the answer goes on from these words
        request |= {"add_generation_prompt": False, "continue_final_message": True}
    return {**request, **{name: value for name, value in mapped.items() if value is not None}}


def _effort(thinking: dict[str, Any], effort: Any) -> Any:
    """Translate the effort of thinking to a chat's field."""
    MESSAGES_THINKING.check_known(thinking)
    kind = thinking.get("type")
    if thinking and kind not in THINKING:
        raise ValueError(f"thinking of type {kind!r} is not known here; known are {', '.join(sorted(THINKING))}")
    return "none" if kind == "disabled" else effort


def _messages(body: dict[str, Any], history: TokenHistory, tools: MessagesTools) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := body.get("system"):
        texts = [system] if isinstance(system, str) else map(_system_text, system)
        if kept := [text for text in texts if not _is_billing(text)]:
            messages.append({"role": "system", "content": "\n\n".join(kept)})
    for message in body["messages"]:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise ValueError("a message has the role user or assistant")
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
        elif isinstance(content, list) and all(isinstance(block, dict) for block in content):
            messages += (
                _assistant_messages(content, history, tools)
                if message["role"] == "assistant"
                else _user_messages(message["role"], content, tools)
            )
        else:
            raise ValueError("a message's content is text or a list of blocks")
    return messages


def _assistant_messages(
    blocks: list[dict[str, Any]], history: TokenHistory, tools: MessagesTools
) -> Iterator[dict[str, Any]]:
    """Convert the model's earlier output: thoughts, text and calls in one message."""
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "compaction":
            texts.append(str(block.get("content") or ""))
        elif kind == "thinking":
            thought = str(block.get("thinking") or unseal(block.get("signature")))
            thoughts.append(thought)
            if not thought:
                tools.left_out.append(kind)
        elif kind == "tool_use":
            value, id = block.get("input") or {}, block.get("id")
            sampled = history.sampled_arguments(id, value, input_of)
            arguments = json.dumps(value, ensure_ascii=False) if sampled is None else sampled
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": id, "type": "function", "function": function})
        elif kind in OF_VENDOR:
            tools.left_out.append(kind)
        else:
            raise ValueError(f"a block of type {kind!r} is not known here; send text and tool uses")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    yield message


def _user_messages(role: str, blocks: list[dict[str, Any]], tools: MessagesTools) -> Iterator[dict[str, Any]]:
    """Convert results of tools, a message each, then the user's other content."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block, tools)}
        else:
            parts += _parts(block)
    if parts:
        yield {"role": role, "content": join_parts(parts)}


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert a block of a user's message or of a tool's result."""
    kind = block.get("type")
    if kind == "text":
        return [text_part(block.get("text"))]
    if kind == "image":
        return [image_part(_image(block.get("source") or {}))]
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        texts = [str(part.get("text") or "") for part in block.get("content") or ()]
        return [text_part("\n".join(filter(None, (block.get("title"), block.get("source"), *texts))))]
    raise ValueError(f"a block of type {kind!r} is not known here; send text, images, documents and tool results")


def _document(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert a document: its title, its context and its text; a note takes the place of other content."""
    source = block.get("source") or {}
    content = source.get("data") if source.get("type") == "text" else source.get("content")
    title, context = block.get("title"), block.get("context")
    heads = [text_part(text) for text in (title, context) if text]
    if isinstance(content, str):
        return [*heads, text_part(content)]
    if isinstance(content, list):
        return [*heads, *chain.from_iterable(map(_parts, content))]
    return [left_out_part("document", title), *([text_part(context)] if context else ())]


def _system_text(block: dict[str, Any]) -> str:
    if block.get("type") != "text":
        raise ValueError(f"a system block of type {block.get('type')!r} is not known here; send text")
    return str(block.get("text") or "")


def _is_billing(text: str) -> bool:
    """Return whether a system block is Claude Code's billing line, whose hash makes each conversation's prompt unique.

    Without it conversations share the cached beginning of their prompts.
    """
    return text.startswith(BILLING_HEADER) and "\n" not in text.strip()


def _result(block: dict[str, Any], tools: MessagesTools) -> Any:
    """Convert a tool's result; a failure is marked in the text."""
    content = block.get("content")
    result = content if isinstance(content, str) else join_parts(list(_result_parts(content or (), tools)))
    if not block.get("is_error"):
        return result
    if isinstance(result, str):
        return result if result.lower().startswith("error") else f"Error: {result}"
    return [text_part("Error: "), *result]


def _result_parts(parts: Iterable[dict[str, Any]], tools: MessagesTools) -> Iterator[dict[str, Any]]:
    for part in parts:
        kind = part.get("type")
        if kind == "tool_reference":
            yield text_part(tools.describe(str(part.get("tool_name"))))
        elif kind == "browser_state":
            yield left_out_part("browser state")
        else:
            yield from _parts(part)


def _image(source: dict[str, Any]) -> str:
    kind = source.get("type")
    if kind == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    if kind == "url" and source.get("url"):
        return str(source["url"])
    raise ValueError(f"an image of source {kind!r} is not known here; send base64, or a URL")


def _choice(choice: dict[str, Any], has_tools: bool) -> Any:
    kind = choice.get("type")
    if kind not in CHOICES and kind != "tool":
        raise ValueError(f"a tool_choice of type {kind!r} is not known here")
    if not has_tools:
        if kind in ("any", "tool"):
            raise ValueError(f"a tool_choice of type {kind!r} needs tools, and the request has none")
        return None
    return {"type": "function", "function": {"name": choice.get("name")}} if kind == "tool" else CHOICES[str(kind)]


def _format(output_format: Any) -> dict[str, Any] | None:
    if not output_format:
        return None
    if output_format.get("type") != "json_schema":
        raise ValueError(
            f"an output format of type {output_format.get('type')!r} is not known here; send a json_schema"
        )
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": output_format.get("schema")}}
