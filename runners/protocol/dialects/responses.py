"""OpenAI's Responses API: a request as a chat, and the chat's answer as a response. Pure."""

from typing import Any

from lightningbus.runners.protocol.dialects.responses_events import ResponsesEncoder
from lightningbus.runners.protocol.dialects.responses_items import item_id, output_items, usage_of
from lightningbus.runners.protocol.dialects.responses_request import Earlier, chat
from lightningbus.runners.protocol.request import ChatRequest

ECHOED_FIELDS = (
    "instructions", "max_output_tokens", "metadata", "previous_response_id", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "truncation", "user",
)  # fmt: skip


class ResponsesDialect:
    """One request."""

    def __init__(self, body: Any, earlier: Earlier) -> None:
        """Raises ValueError with a sentence for the agent."""
        if not isinstance(body, dict):
            raise ValueError("the request body is a JSON object")
        self.body = body
        self._earlier = earlier
        self.call = ChatRequest.parse(chat(body, earlier), chat=True)

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response, which a later request may name as the one before it."""
        choice = response["choices"][0]
        response_body = self.render(
            response, choice["finish_reason"], list(output_items(choice["message"], str(response.get("id"))))
        )
        self.remember(response_body["id"], choice["message"])
        return response_body

    def events(self) -> ResponsesEncoder:
        """A new stream."""
        return ResponsesEncoder(self.render, self.remember)

    def remember(self, id: str, message: dict[str, Any]) -> None:
        """A later request may go on from here."""
        messages = self.call.body["messages"]  # without instructions, which are those of one request
        self._earlier[id] = [*(messages[1:] if self.body.get("instructions") else messages), message]

    def render(self, head: dict[str, Any], finish_reason: str | None, output: list[Any]) -> dict[str, Any]:
        """The response with what it holds so far; ``finish_reason`` None: it is not over."""
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
            "status": status,
            "error": None,
            "incomplete_details": {"reason": truncated} if truncated else None,
            "model": self.body["model"],
            "output": output,
            "parallel_tool_calls": True if parallel is None else parallel,
            "usage": usage_of(head["usage"]) if head.get("usage") else None,
        }
