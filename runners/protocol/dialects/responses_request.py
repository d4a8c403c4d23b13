"""A request of OpenAI's Responses API as a chat. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/create.
"""

import copy
from collections.abc import MutableMapping
from typing import Any

from lightningbus.runners.protocol.dialects.base import text_of
from lightningbus.runners.protocol.request_fields import (
    RESPONSES,
    RESPONSES_INCLUDE,
    RESPONSES_REASONING,
    RESPONSES_STREAM_OPTIONS,
    RESPONSES_TEXT,
)

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}

Earlier = MutableMapping[str, list[Any]]
"""The messages up to and with each response of a rollout, by the response's id."""


def chat(body: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    """Convert a request to a chat; raise ValueError with a sentence for the agent."""
    RESPONSES.check_refused(body)
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    RESPONSES_STREAM_OPTIONS.check_known(body.get("stream_options"))
    RESPONSES_TEXT.check_known(text)
    RESPONSES_REASONING.check_known(reasoning)
    RESPONSES_INCLUDE.check_known(dict.fromkeys(body.get("include") or (), True))
    request = {name: value for name, value in body.items() if name not in RESPONSES.names and value is not None}
    request |= {"messages": _messages(body, earlier), "stream": bool(body.get("stream"))}
    request["stream_options"] = {"include_usage": True}
    mapped = {
        "max_completion_tokens": body.get("max_output_tokens"),
        "parallel_tool_calls": body.get("parallel_tool_calls") if body.get("tools") else None,
        "reasoning_effort": reasoning.get("effort"),
        "response_format": _format(text.get("format") or {}),
        "tools": [_tool(tool) for tool in body.get("tools") or ()] or None,
        "tool_choice": _choice(body.get("tool_choice")) if body.get("tools") else None,
    }
    return {**request, **{name: value for name, value in mapped.items() if value is not None}}


def _messages(body: dict[str, Any], earlier: Earlier) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": str(instructions)})
    if before := body.get("previous_response_id"):
        if before not in earlier:
            raise ValueError(f"previous_response_id {before!r} is of no response in this rollout")
        *history, answer = earlier[before]
        messages += [*history, copy.deepcopy(answer)]  # to which items may be added
    value = body.get("input")
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("the request has no input")
    conversation = _Conversation(messages)
    for item in value:
        if not isinstance(item, dict):
            raise ValueError("an input item is a JSON object")
        conversation.add(item)
    return messages


class _Conversation:
    """Messages, to which items are added one by one."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._call_ids = {call["id"] for call in (messages[-1].get("tool_calls") or () if messages else ())}
        """Ids of the last message's calls."""

    def add(self, item: dict[str, Any]) -> None:
        """Add an item to the conversation; raise ValueError with a sentence for the agent."""
        kind = item.get("type") or "message"
        if kind == "message":
            self._add_message(item)
        elif kind == "function_call":
            self._add_call(item)
        elif kind == "function_call_output":
            content = _content(item.get("output"))
            if not isinstance(content, str):
                raise ValueError("a function's output is text here; images and files are not passed on")
            self._messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "reasoning":
            thought = text_of(item.get("content")) or text_of(item.get("summary"))
            if thought:
                self._begin_answer()["reasoning"] = thought
        else:
            raise ValueError(f"an input item of type {kind!r} is not known here; send messages and function calls")

    def _add_message(self, item: dict[str, Any]) -> None:
        role = ROLES.get(str(item.get("role")))
        if role is None:
            raise ValueError(f"no message has the role {item.get('role')!r}")
        content = _content(item.get("content"))
        if role == "assistant":
            self._answer()["content"] = content if isinstance(content, str) else text_of(content)
        else:
            self._messages.append({"role": role, "content": content})

    def _add_call(self, item: dict[str, Any]) -> None:
        answer, call_id = self._answer(goes_on=True), item.get("call_id")
        if call_id in self._call_ids:  # previous_response_id brought it already
            return
        self._call_ids.add(call_id)
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        answer.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _answer(self, goes_on: bool = False) -> dict[str, Any]:
        """Find or begin the assistant's message for an item: text follows reasoning, calls follow text."""
        last = self._messages[-1] if self._messages else {}
        has_content = last.get("content") is not None or "tool_calls" in last
        return self._begin_answer() if last.get("role") != "assistant" or (has_content and not goes_on) else last

    def _begin_answer(self) -> dict[str, Any]:
        self._messages.append({"role": "assistant", "content": None})
        self._call_ids = set()
        return self._messages[-1]


def _content(content: Any) -> Any:
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal") or "")}
    if kind == "input_image" and part.get("image_url"):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise ValueError(f"content of type {kind!r} is not known here; send text, or images by URL")


def _tool(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise ValueError(f"a tool of type {kind!r} runs at its vendor, not here; give the agent a function instead")
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise ValueError(f"a tool_choice of type {choice.get('type')!r} is not known here")
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(output_format: dict[str, Any]) -> dict[str, Any] | None:
    if output_format.get("type") == "json_schema":
        schema = {
            key: output_format[key]
            for key in ("name", "description", "schema", "strict")
            if output_format.get(key) is not None
        }
        return {"type": "json_schema", "json_schema": schema}
    if output_format.get("type") not in (None, "text", "json_object"):
        raise ValueError(f"a text format of type {output_format.get('type')!r} is not known here")
    return {"type": "json_object"} if output_format.get("type") == "json_object" else None
