"""Google's Gemini API: a request as a chat, and the chat's answer as candidates. Pure.

Source: https://ai.google.dev/api/generate-content.
"""

from typing import Any

from lightningbus.runners.protocol.dialects.base import input_of, sse_event
from lightningbus.runners.protocol.dialects.gemini_contents import Conversation
from lightningbus.runners.protocol.dialects.gemini_request import chat, shows_thoughts
from lightningbus.runners.protocol.dialects.gemini_signature import sign
from lightningbus.runners.protocol.json_text import encode_json
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory

FINISH_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
"""Google's finish reasons by a chat's ``finish_reason``; STOP stands for all others."""
STATUSES = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED", 409: "ABORTED",
    429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""Names of errors by HTTP status. Source: https://cloud.google.com/apis/design/errors."""


class GeminiDialect:
    """One request."""

    def __init__(self, body: Any, history: TokenHistory, stream: bool) -> None:
        """Parse a request; raise ValueError with a sentence for the agent."""
        if not isinstance(body, dict):
            raise ValueError("the request body is a JSON object")
        conversation = Conversation(history)
        self.call = ChatRequest.parse(chat(body, conversation, stream), chat=True)
        self._model, self._shows_thoughts = str(self.call.body["model"]), shows_thoughts(body)
        self.left_out = tuple(dict.fromkeys(conversation.left_out))
        self.tells_full_context_in_stream = False

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Convert a chat's answer."""
        candidates = []
        for choice in response["choices"]:
            parts = CandidateParts(self._shows_thoughts)
            whole = [*parts.add(choice["message"]), *parts.finish()]
            candidates.append(candidate(choice.get("index", 0), whole, str(choice.get("finish_reason"))))
        return {
            **_head(response, self._model),
            "candidates": candidates,
            "usageMetadata": _usage(response.get("usage")),
        }

    def events(self) -> "GeminiEncoder":
        """Return the encoder of a new stream."""
        return GeminiEncoder(self._model, self._shows_thoughts)


class CandidateParts:
    """The parts of one candidate, from a whole message or from the deltas of a stream.

    The part after a thought has the thought as its signature, also where the thought is not shown.
    """

    def __init__(self, shows_thoughts: bool) -> None:
        self._shows_thoughts = shows_thoughts
        self._thought = ""
        """Thought that no part has as its signature yet."""
        self._call: dict[str, Any] | None = None
        """The open call, whose arguments grow."""
        self._call_index: int | None = None
        self._has_content = False

    def add(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the parts that a delta completes."""
        parts: list[dict[str, Any]] = []
        if thought := delta.get("reasoning") or delta.get("reasoning_content"):
            parts += self._end_call()
            self._thought += thought
            if self._shows_thoughts:
                parts.append({"text": thought, "thought": True})
        if text := delta.get("content"):
            parts += [*self._end_call(), self._sign({"text": text})]
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            function, index = piece.get("function") or {}, piece.get("index", position)
            if self._call is None or index != self._call_index:
                parts += self._end_call()
                self._call = {"id": piece.get("id"), "name": function.get("name"), "arguments": ""}
                self._call_index = index
            self._call["arguments"] += function.get("arguments") or ""
        return parts

    def finish(self) -> list[dict[str, Any]]:
        """Return the last parts; a candidate without content gets an empty text."""
        parts = self._end_call()
        return parts if self._has_content and not self._thought else [*parts, self._sign({"text": ""})]

    def _end_call(self) -> list[dict[str, Any]]:
        call, self._call = self._call, None
        if call is None:
            return []
        function = {"id": call["id"], "name": call["name"], "args": input_of(call["arguments"])}
        return [self._sign({"functionCall": function})]

    def _sign(self, part: dict[str, Any]) -> dict[str, Any]:
        thought, self._thought, self._has_content = self._thought, "", True
        return {**part, "thoughtSignature": sign(thought)} if thought else part


class GeminiEncoder:
    """Server-sent events, each a response with the parts that are new; the last one has finish reasons and usage."""

    def __init__(self, model: str, shows_thoughts: bool) -> None:
        self._model, self._shows_thoughts = model, shows_thoughts
        self._head: dict[str, Any] = {}
        self._candidates: dict[int, CandidateParts] = {}
        self._finish_reasons: dict[int, str] = {}
        self._usage: dict[str, Any] | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Encode one chunk as an event, if it completes a part."""
        self._head = self._head or _head(chunk, self._model)
        self._usage = chunk.get("usage") or self._usage
        candidates = []
        for choice in chunk.get("choices", ()):
            index = choice.get("index", 0)
            state = self._candidates.setdefault(index, CandidateParts(self._shows_thoughts))
            if parts := state.add(choice.get("delta") or {}):
                candidates.append(candidate(index, parts))
            if choice.get("finish_reason"):
                self._finish_reasons[index] = choice["finish_reason"]
        return sse_event({**self._head, "candidates": candidates}) if candidates else b""

    def finish(self) -> bytes:
        """Encode the last parts, finish reasons and usage."""
        candidates = [
            candidate(index, state.finish(), self._finish_reasons.get(index, "stop"))
            for index, state in self._candidates.items()
        ]
        return sse_event({**self._head, "candidates": candidates, "usageMetadata": _usage(self._usage)})

    def ping(self) -> bytes:
        """Encode an empty line: Google's clients take a comment for a broken answer."""
        return b"\n"

    def fail(self, reason: str, status: int = 500, code: str = "") -> bytes:
        """Encode an error as Google does, outside of any event."""
        return encode_json(error(status, reason)) + b"\n"


def candidate(index: int, parts: list[dict[str, Any]], finish_reason: str | None = None) -> dict[str, Any]:
    """Build a candidate; ``finish_reason`` None: it goes on."""
    built = {"index": index, "content": {"role": "model", "parts": parts}}
    return built if finish_reason is None else {**built, "finishReason": FINISH_REASONS.get(finish_reason, "STOP")}


def describe_model(name: str, max_model_len: int | None) -> dict[str, Any]:
    """Describe a model with its context, if a node reports one. Source: https://ai.google.dev/api/models."""
    limits = {} if max_model_len is None else {"inputTokenLimit": max_model_len, "outputTokenLimit": max_model_len}
    methods = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, **limits, "supportedGenerationMethods": methods}


def error(status: int, message: str) -> dict[str, Any]:
    """Format an error for Google's API."""
    name = STATUSES.get(status, "INVALID_ARGUMENT" if 400 <= status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def _head(response: dict[str, Any], model: str) -> dict[str, Any]:
    return {"responseId": str(response.get("id", "")), "modelVersion": model}


def _usage(usage: dict[str, Any] | None) -> dict[str, Any]:
    counts = usage or {}
    prompt, answer = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thoughts = min((counts.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0, answer)
    metadata = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": answer - thoughts,
        "totalTokenCount": prompt + answer,
    }
    details = {"thoughtsTokenCount": thoughts, "cachedContentTokenCount": cached}
    return metadata | {name: count for name, count in details.items() if count}
