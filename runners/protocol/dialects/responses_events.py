"""A Responses stream: an item is added, grows by deltas, and is done; then the response is completed. Pure."""

from collections.abc import Callable
from typing import Any

from lightningbus.runners.protocol.dialects.base import PING_COMMENT, error_code, sse_event
from lightningbus.runners.protocol.dialects.responses_client_tools import CLIENT_TOOLS
from lightningbus.runners.protocol.dialects.responses_items import item_id, message_item, reasoning_item
from lightningbus.runners.protocol.dialects.responses_tools import ResponsesTools

Shown = Callable[..., dict[str, Any]]
"""The response from its head, how it ended (None: it has not) and its items; ``error``: why it failed."""
Remember = Callable[[str, dict[str, Any], list[dict[str, Any]]], None]
"""Stores the id of a complete response, the chat's message and the items it became."""


class ResponsesEncoder:
    """Server-sent events of one response."""

    def __init__(self, render: Shown, remember: Remember, tools: ResponsesTools) -> None:
        self._render, self._remember, self._tools = render, remember, tools
        self._head: dict[str, Any] = {}
        self._finish = "stop"
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._open = ""
        """Kind of the open item: reasoning, message or call; empty: none."""
        self._text = ""
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        """The answer so far, as a chat's message."""
        self._call: dict[str, Any] = {}
        self._call_index: int | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Encode one chunk as events."""
        events = b""
        if not self._head:
            events = self._create({key: chunk[key] for key in ("id", "created") if key in chunk})
        if chunk.get("usage"):
            self._head["usage"] = chunk["usage"]
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                events += self._grow("reasoning", thought)
            if text := delta.get("content"):
                events += self._grow("message", text)
            for piece in delta.get("tool_calls") or ():
                events += self._tool(piece)
            self._finish = choice.get("finish_reason") or self._finish
        return events

    def _create(self, head: dict[str, Any]) -> bytes:
        self._head = head
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self._render(head, None, [])) for kind in kinds)

    def finish(self) -> bytes:
        """End the last item, and with it the response."""
        events = self._close()
        if all(item["type"] == "reasoning" for item in self._done):
            events += self._begin("message") + self._close()
        response = self._render(self._head, self._finish, self._done)
        self._remember(response["id"], self._message, self._done)
        return events + self._event(f"response.{response['status']}", response=response)

    def ping(self) -> bytes:
        """Encode a comment, which every client skips."""
        return PING_COMMENT

    def fail(self, reason: str, status: int = 500, code: str = "") -> bytes:
        """End the stream with an error; one with a code of its own is the response's."""
        if code:
            events = b"" if self._head else self._create({"id": "failed"})
            response = self._render(self._head, None, self._done, error={"code": code, "message": reason})
            return events + self._event("response.failed", response=response)
        return self._event("error", code=error_code(status), message=reason, param=None)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse_event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _grow(self, kind: str, text: str) -> bytes:
        events = b"" if self._open == kind else self._close() + self._begin(kind)
        self._text += text
        part: dict[str, Any] = {"content_index": 0, "delta": text}
        if kind == "reasoning":
            return events + self._event("response.reasoning_text.delta", **self._where(), **part)
        return events + self._event("response.output_text.delta", **self._where(), **part, logprobs=[])

    def _tool(self, piece: dict[str, Any]) -> bytes:
        function = piece.get("function") or {}
        events = b""
        index = piece.get("index", 0)
        if self._open != "call" or index != self._call_index:
            events += self._close()
            self._call_index = index
            name = function.get("name") or ""
            self._call = {"id": piece.get("id") or "", "name": name, "kind": self._tools.kind_of(name)}
            events += self._begin("call")
        if arguments := function.get("arguments"):
            self._text += arguments
            if self._call["kind"] == "function":  # what others make of their arguments is known once these are whole
                events += self._event("response.function_call_arguments.delta", **self._where(), delta=arguments)
        return events

    def _begin(self, kind: str) -> bytes:
        self._open, self._text = kind, ""
        return b"" if self._is_item_call() else self._announce()

    def _is_item_call(self) -> bool:
        """Return whether the open item is a call that its tool has a form for, which needs the whole arguments."""
        return self._open == "call" and self._call["kind"] in CLIENT_TOOLS

    def _announce(self) -> bytes:
        started_item = {**self._item(), "status": "in_progress"}
        if "content" in started_item:
            started_item["content"] = []
        events = self._event("response.output_item.added", output_index=len(self._done), item=started_item)
        if self._open != "call":
            part = self._item()["content"][0]
            events += self._event("response.content_part.added", **self._where(), content_index=0, part=part)
        return events

    def _close(self) -> bytes:
        if not self._open:
            return b""
        item, position, index = self._item(), self._where(), {"content_index": 0}
        self._add_to_message()
        if self._is_item_call():
            events = self._announce() + self._list_commands(item)
        elif self._open == "call" and item["type"] == "custom_tool_call":
            events = self._event("response.custom_tool_call_input.delta", **position, delta=item["input"])
            events += self._event("response.custom_tool_call_input.done", **position, input=item["input"])
        elif self._open == "call":
            name = item["name"]
            events = self._event("response.function_call_arguments.done", **position, name=name, arguments=self._text)
        else:
            what = "reasoning_text" if self._open == "reasoning" else "output_text"
            logprobs: dict[str, list[Any]] = {} if self._open == "reasoning" else {"logprobs": []}
            events = self._event(f"response.{what}.done", **position, **index, text=self._text, **logprobs)
            events += self._event("response.content_part.done", **position, **index, part=item["content"][0])
        events += self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._open = ""
        return events

    def _list_commands(self, item: dict[str, Any]) -> bytes:
        """Encode the commands of a shell's call."""
        events = b""
        for index, command in enumerate(item["action"]["commands"] if item["type"] == "shell_call" else ()):
            place = {"output_index": len(self._done), "command_index": index}
            events += self._event("response.shell_call_command.added", **place, command="")
            events += self._event("response.shell_call_command.delta", **place, delta=command)
            events += self._event("response.shell_call_command.done", **place, command=command)
        return events

    def _item(self) -> dict[str, Any]:
        index = len(self._done)
        if self._open == "reasoning":
            return reasoning_item(item_id("rs", self._head, index), self._text)
        if self._open == "message":
            return message_item(item_id("msg", self._head, index), self._text)
        function = {"name": self._call["name"], "arguments": self._text}
        return self._tools.call_item(item_id("fc", self._head, index), self._call["id"], function)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._item()["id"], "output_index": len(self._done)}

    def _add_to_message(self) -> None:
        """Add the open item to the chat's message."""
        message, text = self._message, self._text
        if self._open == "message":
            message["content"] = (message["content"] or "") + text
        elif self._open == "reasoning":
            message["reasoning"] = message.get("reasoning", "") + text
        else:
            function = {"name": self._call["name"], "arguments": text}
            call = {"id": self._call["id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
