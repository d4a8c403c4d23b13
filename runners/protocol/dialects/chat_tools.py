"""Tools of Chat Completions that engines do not know: custom ones, and a choice among some. Pure.

Source: https://platform.openai.com/docs/api-reference/chat/create, ``tools`` and ``tool_choice``.
"""

from typing import Any

from lightningbus.runners.protocol.dialects.custom_tools import custom_arguments, custom_function, custom_input
from lightningbus.runners.protocol.token_history import TokenHistory


class ChatTools:
    """The tools of one chat, of which custom ones are functions of one text."""

    def __init__(self, tools: Any) -> None:
        """Find the custom tools."""
        listed = tools if isinstance(tools, list) else []
        self._custom = frozenset(str(tool["custom"]["name"]) for tool in listed if _is_custom(tool))
        self._custom_calls: dict[tuple[int, int], dict[str, Any]] = {}
        """Streamed calls of custom tools so far, by the index of the choice and of the call."""

    def convert(self, body: dict[str, Any], history: TokenHistory) -> dict[str, Any]:
        """Convert a request to one that engines know; raise ValueError with a sentence for the agent."""
        body = _choose_allowed(body)
        choice, tools, messages = body.get("tool_choice"), body.get("tools"), body.get("messages")
        converted: dict[str, Any] = {}
        if isinstance(choice, dict) and _is_custom(choice):
            converted["tool_choice"] = {"type": "function", "function": {"name": choice["custom"]["name"]}}
        if self._custom and isinstance(tools, list):
            converted["tools"] = list(map(_to_function, tools))
        if isinstance(messages, list):
            converted["messages"] = [_with_functions(message, history) for message in messages]
        return {**body, **converted}

    def convert_answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Convert the calls of a whole answer to those of the agent's tools."""
        if not self._custom:
            return response
        choices = [
            {**choice, "message": self._convert_calls(choice.get("message"))} for choice in response.get("choices", ())
        ]
        return {**response, "choices": choices}

    def convert_chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Convert the calls of a chunk; a custom tool's text is known once its choice has ended."""
        if not self._custom:
            return chunk
        return {**chunk, "choices": [self._convert_part(part) for part in chunk.get("choices", ())]}

    def _convert_part(self, part: dict[str, Any]) -> dict[str, Any]:
        delta, choice = part.get("delta") or {}, part.get("index", 0)
        pieces = [piece for piece in delta.get("tool_calls") or () if not self._hold(piece, choice)]
        if part.get("finish_reason"):
            ended = [key for key in self._custom_calls if key[0] == choice]
            pieces += [{"index": key[1], **self._convert_call(self._custom_calls.pop(key))} for key in ended]
        rest = {name: value for name, value in delta.items() if name != "tool_calls"}
        return {**part, "delta": {**rest, "tool_calls": pieces} if pieces else rest}

    def _hold(self, piece: dict[str, Any], choice: int) -> bool:
        """Keep a piece of a custom tool's call; return whether it is one."""
        function, key = piece.get("function") or {}, (choice, piece.get("index", 0))
        if key not in self._custom_calls and function.get("name") not in self._custom:
            return False
        call = self._custom_calls.setdefault(
            key, {"id": "", "function": {"name": function.get("name"), "arguments": ""}}
        )
        call["id"] = call["id"] or piece.get("id") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
        return True

    def _convert_calls(self, message: Any) -> Any:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        return {**message, "tool_calls": list(map(self._convert_call, calls))} if calls else message

    def _convert_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        if function.get("name") not in self._custom:
            return call
        custom = {"name": function["name"], "input": custom_input(str(function.get("arguments") or ""))}
        return {"id": call.get("id"), "type": "custom", "custom": custom}


def _is_custom(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "custom"


def _name_of(tool: dict[str, Any]) -> str:
    return str(tool["custom" if _is_custom(tool) else "function"]["name"])


def _to_function(tool: Any) -> Any:
    if not _is_custom(tool):
        return tool
    return {"type": "function", "function": {"name": tool["custom"]["name"], **custom_function(tool["custom"])}}


def _with_functions(message: Any, history: TokenHistory) -> Any:
    """Convert the calls of custom tools in an earlier answer."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not any(map(_is_custom, calls)):
        return message
    return {**message, "tool_calls": [_to_function_call(call, history) for call in calls]}


def _to_function_call(call: Any, history: TokenHistory) -> Any:
    if not _is_custom(call):
        return call
    arguments = custom_arguments(str(call["custom"].get("input") or ""), call.get("id"), history)
    function = {"name": call["custom"].get("name"), "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def _choose_allowed(body: dict[str, Any]) -> dict[str, Any]:
    """Leave out the tools that the ``tool_choice`` of a chat does not allow."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return body
    allowed = choice["allowed_tools"]
    names = set(map(_name_of, allowed.get("tools") or ()))
    tools = [tool for tool in body.get("tools") or () if _name_of(tool) in names]
    if not tools and allowed.get("mode") == "required":
        raise ValueError("tool_choice requires one of its allowed tools, and the request has none of them")
    rest = {name: value for name, value in body.items() if name not in ("tool_choice", "tools")}
    return {**rest, "tools": tools, "tool_choice": allowed.get("mode") or "auto"} if tools else rest
