"""Anthropic's Messages API: a request as a chat, and the chat's answer as a message. Pure.

Sources: https://docs.anthropic.com/en/api/messages and https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

import json
from typing import Any

from pydantic_core import from_json

from lightningbus.runners.protocol.dialects.anthropic_request import chat
from lightningbus.runners.protocol.dialects.anthropic_tools import MessagesTools
from lightningbus.runners.protocol.dialects.base import input_of, sse_event
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.thoughts import seal
from lightningbus.runners.protocol.token_history import TokenHistory

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
BLOCK_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""Names of errors by HTTP status; of any other: api_error."""


class AnthropicDialect:
    """One request."""

    def __init__(self, body: Any, history: TokenHistory) -> None:
        """Parse a request; raise ValueError with a sentence for the agent."""
        if not isinstance(body, dict):
            raise ValueError("the request body is a JSON object")
        self._model = body.get("model")
        tools = MessagesTools(body.get("tools"))
        self.call = ChatRequest.parse(chat(body, history, tools), chat=True)
        listed = body.get("tools") or ()
        self._eager = frozenset(str(tool.get("name")) for tool in listed if tool.get("eager_input_streaming"))
        self.left_out = tuple(dict.fromkeys(tools.left_out))
        self.tells_full_context_in_stream = False

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Convert a chat's answer to a message."""
        choice = response["choices"][0]
        message = choice["message"]
        message_body = {
            **message_head(response, str(self._model)),
            **stop_fields(choice, bool(message.get("tool_calls"))),
        }
        return {**message_body, "usage": _usage(response.get("usage")), "content": list(_blocks(message))}

    def events(self) -> "AnthropicEncoder":
        """Return the encoder of a new stream."""
        return AnthropicEncoder(str(self._model), self._eager)


class AnthropicEncoder:
    """Server-sent events of one message: blocks are started, grow, and are stopped; then the message is.

    Clients execute arguments that they can parse. So those of a call are sent once they are whole, unless its tool has
    ``eager_input_streaming``: its client expects that they are cut. What its parser would fail at is never sent.
    """

    def __init__(self, model: str, eager: frozenset[str] = frozenset()) -> None:
        """Begin a message; ``eager`` names tools whose arguments are sent as they come."""
        self._model, self._eager = model, eager
        self._begun = False
        self._block = -1
        self._open: tuple[str, int | None] | None = None
        """Kind of the open block, and the index of its call."""
        self._thought = ""
        """Text of the open thought."""
        self._arguments = ""
        """Those of the open call."""
        self._num_sent = 0
        """Characters of them that were sent."""
        self._is_eager = False
        self._has_content = self._called = False
        self._ending: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Encode one chunk as events."""
        events = b""
        if not self._begun:
            self._begun = True
            message = {**message_head(chunk, self._model), "stop_reason": None, "stop_sequence": None, "content": []}
            usage = chunk.get("usage") or {"prompt_tokens": len(chunk.get("prompt_token_ids") or ())}
            events += _event("message_start", message={**message, "usage": _usage(usage)})
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                events += self._grow(("thinking", None), {"type": "thinking", "thinking": "", "signature": ""})
                events += self._delta(type="thinking_delta", thinking=thought)
                self._thought += thought
            if text := delta.get("content"):
                self._has_content = True
                events += self._grow(("text", None), {"type": "text", "text": ""})
                events += self._delta(type="text_delta", text=text)
            for piece in delta.get("tool_calls") or ():
                function = piece.get("function") or {}
                block = {"type": "tool_use", "id": piece.get("id"), "name": function.get("name"), "input": {}}
                self._called = True
                events += self._grow(("tool_use", piece.get("index", 0)), block)
                events += self._add_arguments(function.get("arguments") or "")
            if choice.get("finish_reason"):
                self._ending = choice
        return events

    def finish(self) -> bytes:
        """End the message; one without content gets an empty text."""
        silent = not self._has_content and not self._called
        empty = self._grow(("text", None), {"type": "text", "text": ""}) if silent else b""
        return (
            empty
            + self._stop()
            + _event("message_delta", delta=stop_fields(self._ending, self._called), usage=_usage(self._usage))
            + _event("message_stop")
        )

    def ping(self) -> bytes:
        """Encode the event that shows a waiting client that its answer is being made."""
        return _event("ping")

    def fail(self, reason: str, status: int = 500, code: str = "") -> bytes:
        """End the stream with an error."""
        return sse_event(error(status, reason), "error")

    def _grow(self, what: tuple[str, int | None], block: dict[str, Any]) -> bytes:
        if self._open == what:
            return b""
        events = self._stop()
        self._open, self._is_eager = what, block.get("name") in self._eager
        self._block += 1
        return events + _event("content_block_start", index=self._block, content_block=block)

    def _add_arguments(self, added: str) -> bytes:
        self._arguments += added
        if not (added and self._is_eager and _begins_object(self._arguments)):
            return b""
        start, self._num_sent = self._num_sent, len(self._arguments)
        return self._delta(type="input_json_delta", partial_json=self._arguments[start:])

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        events = b""
        if self._open[0] == "tool_use" and not self._num_sent:
            events = self._delta(type="input_json_delta", partial_json=json.dumps(input_of(self._arguments)))
        elif self._open[0] == "thinking":
            events = self._delta(type="signature_delta", signature=seal(self._thought))
        self._open, self._thought, self._arguments, self._num_sent = None, "", "", 0
        return events + _event("content_block_stop", index=self._block)


def error(status: int, message: str) -> dict[str, Any]:
    """Format an error for Anthropic's API."""
    return {"type": "error", "error": {"type": BLOCK_TYPES.get(status, "api_error"), "message": message}}


def message_head(head: dict[str, Any], model: str) -> dict[str, Any]:
    """Build a message without content; the model has the agent's name for it."""
    tail = str(head.get("id", "")).rpartition("-")[2]
    return {"id": f"msg_{tail}", "type": "message", "role": "assistant", "model": model}


def stop_fields(choice: dict[str, Any], called: bool) -> dict[str, Any]:
    """Build the stop fields; a call requested by name ends a chat with ``stop``, a message with ``tool_use``."""
    stop = choice.get("stop_reason")
    at = stop if isinstance(stop, str) else None  # otherwise a token's number, or none
    finish = str(choice.get("finish_reason"))
    reason = (
        "stop_sequence" if at is not None else STOP_REASONS.get("tool_calls" if called and finish == "stop" else finish)
    )
    reason = reason or "end_turn"
    return {"stop_reason": reason, "stop_sequence": at}


def _blocks(message: dict[str, Any]) -> Any:
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thought, "signature": seal(thought)}
    calls = message.get("tool_calls") or ()
    if message.get("content") or not calls:
        yield {"type": "text", "text": message.get("content") or ""}
    for call in calls:
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": input_of(function["arguments"])}


def _usage(usage: dict[str, Any] | None) -> dict[str, Any]:
    counts = usage or {}
    cached = min((counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0, counts.get("prompt_tokens", 0))
    return {
        "input_tokens": counts.get("prompt_tokens", 0) - cached,
        "output_tokens": counts.get("completion_tokens", 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _begins_object(text: str) -> bool:
    """Return whether a text is the beginning of a JSON object to the parser that the vendor's client has, jiter."""
    try:
        return isinstance(from_json(text, allow_partial="trailing-strings"), dict)
    except ValueError:
        return False


def _event(kind: str, **fields: Any) -> bytes:
    return sse_event({"type": kind, **fields}, kind)
