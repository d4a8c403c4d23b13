"""Which model call a span belongs to: the one it references, else the last one that ended before it. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.semconv import attributes, span_kinds

WORD = re.compile(r"[\w-]{6,}")
"""A word of a text that may be the id of a tool call."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A model call that has a response."""

    span_id: str
    attributes: Mapping[str, Any]
    """Attributes of its span."""
    end_time: float
    """In the same unit as the start times of spans."""
    response: str
    """The chat message, JSON."""

    @property
    def response_key(self) -> str:
        """The part of its response id that is the same in every API."""
        return span_kinds.normalize_response_id(str(self.attributes.get(attributes.RESPONSE_ID, "")))

    @property
    def tool_call_ids(self) -> list[str]:
        """Ids of the tool calls in its response."""
        try:
            message = json.loads(self.response)
        except ValueError:
            return []
        tool_calls = message.get("tool_calls") if isinstance(message, dict) else None
        return [str(call["id"]) for call in tool_calls or () if isinstance(call, dict) and call.get("id")]


class CallIndex:
    """The calls of one attempt; a call is identified by its index in ``calls``."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self.calls = calls
        self._by_tool_call = {id: index for index, call in enumerate(calls) for id in call.tool_call_ids}

    def find_referenced(self, span_attributes: Mapping[str, Any]) -> int | None:
        """The call that a span references: by links of Agent Lightning's, or by the tool call that it executes."""
        links = list(span_kinds.agl_links(span_attributes))
        if links:
            matches = (index for index, call in enumerate(self.calls) if all(_matches(call, *link) for link in links))
            return next(matches, None)
        if attributes.TOOL_CALL in span_attributes:
            return self._by_tool_call.get(str(span_attributes[attributes.TOOL_CALL]))
        if not self._by_tool_call or span_kinds.kind_of("", span_attributes) != "tool":
            return None
        words = WORD.findall(span_kinds.output_text(span_attributes))  # LangChain's tools return the id in their output
        return next((self._by_tool_call[word] for word in words if word in self._by_tool_call), None)

    def find_preceding(self, start_time: float) -> int | None:
        """The call that was the last to end before a span started; None before the first."""
        ended = [(call.end_time, index) for index, call in enumerate(self.calls) if call.end_time <= start_time]
        return max(ended)[1] if ended else None


def _matches(call: RecordedCall, key: str, value: str) -> bool:
    if key == "span_id":
        return call.span_id == value
    if key == attributes.RESPONSE_ID:
        return call.response_key == span_kinds.normalize_response_id(value) != ""
    return key in call.attributes and attributes.to_text(call.attributes[key]) == value
