"""Which model call a span belongs to: the one it names, the one that asked for its tool, or the one before. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.semconv import attributes, span_kinds

WORD = re.compile(r"[\w-]{6,}")
"""What may be the id of a tool call in a text."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model call that was answered."""

    span_id: str
    said: Mapping[str, Any]
    """Attributes of its span."""
    ended: float
    """In the unit in which spans say when they began."""
    response: str
    """The chat's message, as JSON."""

    @property
    def answer(self) -> str:
        """The id of its answer, as in every API."""
        return span_kinds.answer_key(str(self.said.get(attributes.RESPONSE_ID, "")))

    @property
    def tools(self) -> list[str]:
        """Ids of the tool calls it asked for."""
        try:
            message = json.loads(self.response)
        except ValueError:
            return []
        found = message.get("tool_calls") if isinstance(message, dict) else None
        return [str(one["id"]) for one in found or () if isinstance(one, dict) and one.get("id")]


class Asking:
    """The calls of one attempt, each by its place among them."""

    def __init__(self, calls: Sequence[Asked]) -> None:
        self.calls = calls
        self._tools = {tool: place for place, call in enumerate(calls) for tool in call.tools}

    def named(self, said: Mapping[str, Any]) -> int | None:
        """The call that a span names: by links of Agent Lightning's, or by the tool call that it answers."""
        links = list(span_kinds.links(said))
        if links:
            fitting = (place for place, call in enumerate(self.calls) if all(_fits(call, *link) for link in links))
            return next(fitting, None)
        if attributes.TOOL_CALL in said:
            return self._tools.get(str(said[attributes.TOOL_CALL]))
        if not self._tools or span_kinds.kind_of("", said) != "tool":
            return None
        words = WORD.findall(span_kinds.outputs(said))  # LangChain's tools give the id back with their answer
        return next((self._tools[word] for word in words if word in self._tools), None)

    def before(self, began: float) -> int | None:
        """The call that last ended before a span began; what comes before the first belongs to none."""
        ended = [(call.ended, place) for place, call in enumerate(self.calls) if call.ended <= began]
        return max(ended)[1] if ended else None


def _fits(call: Asked, key: str, value: str) -> bool:
    if key == "span_id":
        return call.span_id == value
    if key == attributes.RESPONSE_ID:
        return call.answer == span_kinds.answer_key(value) != ""
    return key in call.said and attributes.as_text(call.said[key]) == value
