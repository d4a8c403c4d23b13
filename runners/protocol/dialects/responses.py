"""OpenAI's Responses API: a request as a chat, and the chat's answer as a response. Pure."""

from typing import Any

from lightningbus.runners.protocol.dialects.responses_events import ResponsesEncoder
from lightningbus.runners.protocol.dialects.responses_items import item_id, output_items, usage_of
from lightningbus.runners.protocol.dialects.responses_request import chat
from lightningbus.runners.protocol.dialects.responses_tools import ResponsesTools
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory

ECHOED_FIELDS = (
    "instructions", "max_output_tokens", "metadata", "previous_response_id", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "truncation", "user",
)  # fmt: skip


class ResponsesDialect:
    """One request."""

    def __init__(self, body: Any, history: TokenHistory) -> None:
        """Parse a request; raise ValueError with a sentence for the agent."""
        if not isinstance(body, dict):
            raise ValueError("the request body is a JSON object")
        self.body = body
        self._history, self._tools = history, ResponsesTools(body.get("tools"))
        self.call = ChatRequest.parse(chat(body, history, self._tools), chat=True)
        self.tells_full_context_in_stream = True
        self.left_out = tuple(dict.fromkeys(self._tools.left_out))

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Convert the answer to a response, and remember it for a later request that continues from it."""
        choice = response["choices"][0]
        items = list(output_items(choice["message"], str(response.get("id")), self._tools))
        response_body = self.render(response, choice["finish_reason"], items)
        self.remember(response_body["id"], choice["message"], items)
        return response_body

    def events(self) -> ResponsesEncoder:
        """Return the encoder of a new stream."""
        return ResponsesEncoder(self.render, self.remember, self._tools)

    def remember(self, id: str, message: dict[str, Any], items: list[dict[str, Any]]) -> None:
        """Remember the conversation, so that a later request may continue from it."""
        messages = self.call.body["messages"]  # without instructions, which are those of one request
        self._history.items.update((item["id"], item) for item in items)
        self._history.responses[id] = [*(messages[1:] if self.body.get("instructions") else messages), message]

    def render(
        self, head: dict[str, Any], finish_reason: str | None, output: list[Any], error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Render the response with its content so far; ``finish_reason`` None: it is incomplete."""
        truncated = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish_reason or "")
        status = "in_progress" if finish_reason is None else "incomplete" if truncated else "completed"
        echoed = {name: self.body.get(name) for name in ECHOED_FIELDS}
        echoed["tools"] = echoed["tools"] or []
        echoed["tool_choice"] = echoed["tool_choice"] or "auto"
        echoed["metadata"] = echoed["metadata"] or {}
        parallel = self.body.get("parallel_tool_calls")
        return {
            **echoed,
            "id": item_id("resp", head),
            "object": "response",
            "created_at": head.get("created", 0),
            "status": "failed" if error else status,
            "error": error,
            "incomplete_details": {"reason": truncated} if truncated else None,
            "model": self.body["model"],
            "output": output,
            "parallel_tool_calls": True if parallel is None else parallel,
            "usage": usage_of(head["usage"]) if head.get("usage") else None,
        }
