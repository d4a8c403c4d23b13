"""A request of OpenAI's Responses API as a chat. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/create.
"""

import copy
from typing import Any

from lightningbus.runners.protocol.dialects.base import text_of
from lightningbus.runners.protocol.dialects.custom_tools import custom_arguments
from lightningbus.runners.protocol.dialects.responses_client_tools import (
    CALLS,
    CLIENT_TOOLS,
    OUTPUTS,
    output_text,
    write_arguments,
)
from lightningbus.runners.protocol.dialects.responses_tools import ResponsesTools
from lightningbus.runners.protocol.message_parts import image_part, join_parts, left_out_part, text_part
from lightningbus.runners.protocol.request_fields import (
    RESPONSES,
    RESPONSES_INCLUDE,
    RESPONSES_REASONING,
    RESPONSES_STREAM_OPTIONS,
    RESPONSES_TEXT,
)
from lightningbus.runners.protocol.thoughts import unseal
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}

OF_VENDOR = frozenset({
    "code_interpreter_call", "compaction", "compaction_trigger", "computer_call", "computer_call_output",
    "configuration_update", "file_search_call", "image_generation_call", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output", "tool_search_call",
    "tool_search_output", "web_search_call",
})  # fmt: skip
"""Types of input items that are of the vendor's own tools and records, or encrypted: no model here can read them."""


def chat(body: dict[str, Any], history: TokenHistory, tools: ResponsesTools) -> dict[str, Any]:
    """Convert a request with these tools to a chat; raise ValueError with a sentence for the agent.

    Names what it leaves out in the tools' ``left_out``.
    """
    RESPONSES.check_refused(body)
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    RESPONSES_STREAM_OPTIONS.check_known(body.get("stream_options"))
    RESPONSES_TEXT.check_known(text)
    RESPONSES_REASONING.check_known(reasoning)
    RESPONSES_INCLUDE.check_known(dict.fromkeys(body.get("include") or (), True))
    request = {name: value for name, value in body.items() if name not in RESPONSES.names and value is not None}
    request |= {"messages": _messages(body, history, tools), "stream": body.get("stream") or False}
    request["stream_options"] = {"include_usage": True}
    choice, functions = tools.choose(body.get("tool_choice"))
    mapped = {
        "max_completion_tokens": body.get("max_output_tokens"),
        "parallel_tool_calls": body.get("parallel_tool_calls") if functions else None,
        "reasoning_effort": reasoning.get("effort"),
        "response_format": _format(text.get("format") or {}),
        "tools": functions or None,
        "tool_choice": choice if functions else None,
    }
    return {**request, **{name: value for name, value in mapped.items() if value is not None}}


def _messages(body: dict[str, Any], history: TokenHistory, tools: ResponsesTools) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": str(instructions)})
    if before := body.get("previous_response_id"):
        if before not in history.responses:
            raise ValueError(f"previous_response_id {before!r} is of no response in this rollout")
        *earlier, answer = history.responses[before]
        messages += [*earlier, copy.deepcopy(answer)]  # to which items may be added
    value = body.get("input")
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("the request has no input")
    conversation = _Conversation(messages, history, tools)
    for item in value:
        if not isinstance(item, dict):
            raise ValueError("an input item is a JSON object")
        conversation.add(item)
    return messages


class _Conversation:
    """Messages, to which items are added one by one."""

    def __init__(self, messages: list[dict[str, Any]], history: TokenHistory, tools: ResponsesTools) -> None:
        self._messages, self._history, self._tools = messages, history, tools
        self._call_ids = {call["id"] for call in (messages[-1].get("tool_calls") or () if messages else ())}
        """Ids of the last message's calls."""

    def add(self, item: dict[str, Any]) -> None:
        """Add an item to the conversation; raise ValueError with a sentence for the agent."""
        kind = item.get("type") or ("item_reference" if item.keys() == {"id"} else "message")
        if kind == "message":
            self._add_message(item)
        elif kind == "function_call":
            self._add_call(item, self._function_arguments(item))
        elif kind == "custom_tool_call":
            arguments = custom_arguments(str(item.get("input") or ""), item.get("call_id"), self._history)
            self._add_call(item, arguments, "custom")
        elif kind in CALLS:
            tool = CALLS[kind]
            self._add_call({**item, "name": tool}, self._client_arguments(item, tool), tool)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(item, _content(item.get("output")))
        elif kind in OUTPUTS:
            self._add_output(item, output_text(item))
        elif kind == "reasoning":
            sealed = unseal(item.get("encrypted_content"))
            thought = text_of(item.get("content")) or sealed or text_of(item.get("summary"))
            if thought:
                self._begin_answer()["reasoning"] = thought
            elif item.get("encrypted_content"):
                self._tools.left_out.append(kind)
        elif kind == "item_reference":
            self._add_earlier(item.get("id"))
        elif kind in OF_VENDOR:
            self._tools.left_out.append(kind)
        else:
            raise ValueError(f"an input item of type {kind!r} is not known here; send messages and function calls")

    def _add_earlier(self, id: Any) -> None:
        """Add an item of an earlier response of this rollout."""
        if not isinstance(id, str) or id not in self._history.items:
            raise ValueError(f"an input item of type 'item_reference' names {id!r}, and no response here has that item")
        self.add(self._history.items[id])

    def _add_message(self, item: dict[str, Any]) -> None:
        role = ROLES.get(str(item.get("role")))
        if role is None:
            raise ValueError(f"no message has the role {item.get('role')!r}")
        if role == "assistant":  # its parts are those of one sampled text
            content = item.get("content")
            parts = content if isinstance(content, str) else [_part(part) for part in content or ()]
            self._answer()["content"] = text_of(parts)
        else:
            self._messages.append({"role": role, "content": _content(item.get("content"))})

    def _add_output(self, item: dict[str, Any], content: Any) -> None:
        call_id = item.get("call_id") or item.get("id")  # the output of a local_shell has the call's id as its own
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _add_call(self, item: dict[str, Any], arguments: str, kind: str = "function") -> None:
        answer, call_id = self._answer(goes_on=True), item.get("call_id")
        if call_id in self._call_ids:  # previous_response_id brought it already
            return
        self._call_ids.add(call_id)
        name = self._tools.function_of(item.get("name"), item.get("namespace"), kind)
        function = {"name": name, "arguments": arguments}
        answer.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _function_arguments(self, item: dict[str, Any]) -> str:
        arguments = str(item.get("arguments") or "")
        sent_back = parse_arguments(arguments)
        return self._history.sampled_arguments(item.get("call_id"), sent_back, parse_arguments) or arguments

    def _client_arguments(self, item: dict[str, Any], kind: str) -> str:
        tool = CLIENT_TOOLS[kind]
        sent_back = item.get(tool.name)
        return self._history.sampled_arguments(item.get("call_id"), sent_back, tool.read) or write_arguments(sent_back)

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
    return join_parts([_part(part) for part in content])


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text"):
        return text_part(part.get("text"))
    if kind == "refusal":
        return text_part(part.get("refusal"))
    if kind == "input_image" and part.get("image_url"):
        return image_part(part["image_url"])
    if kind == "input_file":
        return left_out_part("file", part.get("filename"))
    raise ValueError(f"content of type {kind!r} is not known here; send text, or images by URL")


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
