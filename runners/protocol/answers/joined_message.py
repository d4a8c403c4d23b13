"""The message that the deltas of one streamed choice add up to. Pure.

Engines and endpoints split a message differently: a null has no meaning, a call's id, name and arguments come in any
order, and pieces of several calls may share an index or have none.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from lightningbus.schemas.text import replace_surrogates

FIXED = frozenset({"role", "type", "id", "name", "index"})
"""Fields sent once or repeated; the texts of all others are appended."""


@dataclass(slots=True)
class ToolCall:
    """One tool call so far."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    others: dict[str, Any] = field(default_factory=dict)
    """Fields beside these, such as ``type``."""

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are complete JSON."""
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


class JoinedMessage:
    """Takes deltas in order."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._calls: list[ToolCall] = []
        self._settled: list[ToolCall] = []
        """The calls that stay the first ones."""
        self._by_id: dict[tuple[int | None, str], ToolCall] = {}
        self._last: dict[int | None, ToolCall] = {}
        """The call that a piece with this index belongs to; None: the last piece of all."""

    @property
    def is_plain_text(self) -> bool:
        """Whether it has content alone."""
        return not self._calls and self._fields.keys() <= {"role", "content"}

    @property
    def has_content(self) -> bool:
        """Whether the message has content."""
        return bool(self._fields.get("content"))

    def add(self, delta: dict[str, Any]) -> None:
        """Take what one chunk adds."""
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)
        _merge(self._fields, {key: value for key, value in delta.items() if key != "tool_calls"})

    def text(self, name: str) -> str:
        """Return a field's text so far; empty where it has none."""
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def ordered(self) -> list[ToolCall]:
        """Return the tool calls so far by their index, or as they came where some have none."""
        calls = [call for call in self._calls if not any(call is each for each in self._settled)]
        if all(call.index is not None for call in self._calls):
            calls.sort(key=lambda call: call.index or 0)
        return [*self._settled, *calls]

    def settle(self, call: ToolCall) -> None:
        """Keep the order of the settled calls and this one, whatever comes."""
        self._settled.append(call)

    def calls(self, response_id: str) -> list[dict[str, Any]]:
        """Return the complete tool calls in order; a missing id is derived from the response's."""
        tail = response_id.rpartition("-")[2]
        return [
            _clean({
                "id": call.id or f"call_{tail}_{position}",
                "type": "function",
                **call.others,
                "function": {"name": call.name, "arguments": call.arguments},
            })
            for position, call in enumerate(self.ordered())
        ]  # fmt: skip

    def whole(self, response_id: str) -> dict[str, Any]:
        """Return the message in the form of an answer without a stream."""
        message = {"role": "assistant", "content": None, **_clean(self._fields)}
        if self._calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = self.calls(response_id)
        return message

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        id, name, arguments = piece.get("id") or "", function.get("name") or "", function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        index = piece.get("index")
        call = self._find(index, id)
        if call is None or (not id and _begins_another(call, name, arguments)):
            call = ToolCall(index)
            self._calls.append(call)
        self._last[index] = self._last[None] = call
        if id:
            call.id = id
            self._by_id[index, id] = self._by_id[None, id] = call
        if name != call.name:
            call.name = name if name.startswith(call.name) else call.name + name
        call.arguments += arguments
        _merge(call.others, {key: value for key, value in piece.items() if key not in ("id", "index", "function")})

    def _find(self, index: int | None, id: str) -> ToolCall | None:
        """Find the call that a piece continues: that of its id, else the last of its index without another id."""
        if id and (known := self._by_id.get((index, id))) is not None:
            return known
        last = self._last.get(index)
        return None if last is not None and id and last.id else last


def _begins_another(call: ToolCall, name: str, arguments: str) -> bool:
    """Return whether a piece without an id, but with a name, begins a new call: the one before it is complete."""
    return bool(name and call.name and call.arguments and (name != call.name or arguments)) and call.is_whole


def _merge(whole: dict[str, Any], added: dict[str, Any]) -> None:
    for key, value in added.items():
        before = whole.get(key)
        if value is None:
            continue
        if isinstance(value, dict) and isinstance(before, dict | None):
            _merge(whole.setdefault(key, {}) if before is None else before, value)
        elif key not in FIXED and isinstance(value, str) and isinstance(before, str):
            whole[key] = before + value
        elif isinstance(before, list) or (before and isinstance(value, list)):
            whole[key] = [*_parts(before), *_parts(value)]
        else:
            whole[key] = value


def _parts(content: Any) -> list[Any]:
    """Return content as a list: some endpoints cut it into parts, and give its end as text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else [content]


def _clean(value: Any) -> Any:
    """Join the halves of characters that were cut between deltas, and replace single halves."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
