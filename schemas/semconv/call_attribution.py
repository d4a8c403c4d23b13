"""Attribution of spans to model calls: the call a span references, else the last one that ended before it. Pure."""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightningbus.schemas.semconv import attributes, span_kinds

WORD = re.compile(r"[\w-]{6,}")
"""A word of a text that may be the id of a tool call."""
RESPONSE_WORD = re.compile(r"[0-9A-Za-z]{8,}")
"""A word of a text that may be the key of a response; a shorter word may match by chance."""
PREFIXED_ID = re.compile(r"\b(?:chatcmpl|resp|msg)[-_][\w-]{0,64}?([0-9A-Za-z]{8,64})(?![\w-])")
"""A word that is an id of a response, by its prefix."""


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
        return get_response_key(self.attributes)

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
        self._by_end = sorted((call.end_time, index) for index, call in enumerate(calls))
        self._by_link: dict[tuple[str, str], list[int]] = {}
        for index, call in enumerate(calls):
            for link in _linkable(call):
                self._by_link.setdefault(link, []).append(index)

    def find_referenced(self, span_attributes: Mapping[str, Any]) -> int | None:
        """Find the call that a span references, by links of Agent Lightning's or by the tool call that it executes."""
        links = [_normalized(*link) for link in span_kinds.agl_links(span_attributes)]
        if links:
            fewest, *others = sorted((self._by_link.get(link, []) for link in links), key=len)
            return next((index for index in fewest if all(_contains(indices, index) for indices in others)), None)
        if attributes.TOOL_CALL in span_attributes:
            return self._by_tool_call.get(str(span_attributes[attributes.TOOL_CALL]))
        if not self._by_tool_call or span_kinds.kind_of("", span_attributes) != "tool":
            return None
        words = WORD.findall(span_kinds.output_text(span_attributes))  # LangChain's tools return the id in their output
        return next((self._by_tool_call[word] for word in words if word in self._by_tool_call), None)

    def find_preceding(self, start_time: float) -> int | None:
        """Find the last call to end before a span started; None before the first."""
        num_ended = bisect_right(self._by_end, start_time, key=lambda ended: ended[0])
        return self._by_end[num_ended - 1][1] if num_ended else None


def get_response_key(span_attributes: Mapping[str, Any]) -> str:
    """Return the part of a span's response id that is the same in every API; empty: it has none."""
    return span_kinds.normalize_response_id(str(span_attributes.get(attributes.RESPONSE_ID, "")))


def find_response_keys(span_attributes: Mapping[str, Any]) -> set[str]:
    """Find the keys of responses that a span may name: by its response id, else all words of its outputs."""
    key = get_response_key(span_attributes)
    return {key} if key else set(RESPONSE_WORD.findall(span_kinds.output_text(span_attributes)))


def find_prefixed_key(span_attributes: Mapping[str, Any]) -> str:
    """Find the first id of a response in a span's outputs, by its prefix; empty: there is none."""
    match = PREFIXED_ID.search(span_kinds.output_text(span_attributes))
    return match[1] if match else ""


def _linkable(call: RecordedCall) -> Iterator[tuple[str, str]]:
    """List the links that match a call."""
    yield "span_id", call.span_id
    if call.response_key:
        yield attributes.RESPONSE_ID, call.response_key
    for key, value in call.attributes.items():
        if key not in ("span_id", attributes.RESPONSE_ID):
            yield key, attributes.to_text(value)


def _normalized(key: str, value: str) -> tuple[str, str]:
    return key, span_kinds.normalize_response_id(value) if key == attributes.RESPONSE_ID else value


def _contains(indices: Sequence[int], index: int) -> bool:
    """Return whether an ascending list has an index."""
    place = bisect_left(indices, index)
    return place < len(indices) and indices[place] == index
