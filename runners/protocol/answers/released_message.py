"""The part of a streamed message that an agent with tools has, and its end. Pure.

Text and arguments are released as they come. Calls follow one another, as APIs of blocks have them: a call begins once
its id, its name and the first of its arguments are there, and the call before it is whole. Text after the first call
waits for the message's end. The recorded message is what was released.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lightningbus.runners.protocol.answers.joined_message import JoinedMessage, ToolCall
from lightningbus.schemas.text import replace_surrogates

TEXTS = ("content", "reasoning", "reasoning_content")
"""Fields of a message that grow."""
SEPARATORS = ((", ", ": "), (",", ":"), (",", ": "))
"""Styles in which models write JSON, and in one of which parsers write it again."""


@dataclass(slots=True)
class _ReleasedText:
    """A text that grows; half of a character waits for its other half."""

    text: str = ""
    num_taken: int = 0

    def grow(self, whole: str) -> str:
        """Return what is new of a text of which more has come."""
        end = len(whole) - ("\ud800" <= whole[-1:] <= "\udbff")
        added = replace_surrogates(whole[self.num_taken : end])
        self.num_taken = max(end, self.num_taken)
        self.text += added
        return added


@dataclass(slots=True)
class _ReleasedCall:
    call: ToolCall
    id: str
    name: str
    arguments: _ReleasedText = field(default_factory=_ReleasedText)

    def grow(self) -> str:
        """Return what is new of the arguments."""
        return self.arguments.grow(self.call.arguments)


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The rest of a message as deltas, at least one, and the whole message."""

    deltas: list[dict[str, Any]]
    message: dict[str, Any]


class ReleasedMessage:
    """One message, as far as a streaming agent has it."""

    def __init__(self) -> None:
        self._texts = {name: _ReleasedText() for name in TEXTS}
        self._calls: list[_ReleasedCall] = []

    def advance(self, message: JoinedMessage) -> dict[str, Any]:
        """Return the delta by which the agent's part of a growing message grows."""
        delta: dict[str, Any] = {}
        for name, released in self._texts.items() if not self._calls else ():
            if added := released.grow(message.text(name)):
                delta[name] = added
        pieces = list(self._advance_calls(message))
        return {**delta, "tool_calls": pieces} if pieces else delta

    def _advance_calls(self, message: JoinedMessage) -> Iterator[dict[str, Any]]:
        if self._calls and (added := self._calls[-1].grow()):
            yield {"index": len(self._calls) - 1, "function": {"arguments": added}}
        calls = message.ordered()
        while (position := len(self._calls)) < len(calls):
            call = calls[position]
            is_next = call.index is None or call.index <= position
            if not (is_next and call.id and call.name and call.arguments):
                return
            if self._calls and not self._calls[-1].call.is_whole:
                return
            message.settle(call)
            self._calls.append(released := _ReleasedCall(call, call.id, call.name))
            function = {"name": call.name, "arguments": released.grow()}
            yield {"index": position, "id": call.id, "type": "function", **call.others, "function": function}

    def end(self, final: dict[str, Any]) -> MessageEnd | None:
        """Return how the message ends as ``final``; None where that does not begin with the agent's part.

        Parsers of a whole text write white space at a text's ends, and JSON, in another way than those of a stream.
        What the agent has stays as it has it.
        """
        calls, num_begun = list(final.get("tool_calls") or ()), len(self._calls)
        if len(calls) < num_begun:
            return None
        message, texts = dict(final), {}
        for name, released in self._texts.items():
            rest = _rest_of(released.text, final.get(name))
            if rest is None and not num_begun:
                return None
            if rest:
                texts[name] = rest
            if released.text:
                message[name] = released.text + (rest or "")
        pieces: list[dict[str, Any]] = []
        for position, released_call in enumerate(self._calls):
            function, begun = calls[position]["function"], released_call.arguments.text
            arguments: str | None = begun
            if position == num_begun - 1:
                arguments = _continue_json(begun, function["arguments"])
                if arguments is None or not function["name"].startswith(released_call.name):
                    return None
                if rest := arguments[len(begun) :]:
                    pieces.append({"index": position, "function": {"arguments": rest}})
            function = {"name": released_call.name, "arguments": arguments}
            calls[position] = {**calls[position], "id": released_call.id, "function": function}
        pieces += [{"index": position, **call} for position, call in enumerate(calls) if position >= num_begun]
        if calls:
            message["tool_calls"] = calls
        by_call = {"tool_calls": pieces} if pieces else {}
        # Within a delta, text stands before calls.
        return MessageEnd([by_call, texts] if num_begun and by_call and texts else [{**texts, **by_call}], message)


def _rest_of(begun: str, whole: Any) -> Any:
    """Return what follows of a text; None where it does not begin so, be it without white space at its ends."""
    if not begun or not isinstance(whole, str):
        return "" if begun else whole or ""
    if whole.startswith(begun):
        return whole[len(begun) :]
    begun, whole = begun.lstrip(), whole.lstrip()
    if whole.startswith(begun):
        return whole[len(begun) :]
    return "" if whole == begun.rstrip() else None


def _continue_json(begun: str, whole: str) -> str | None:
    """Write arguments in the style in which they were begun; None where they do not begin so."""
    if whole.startswith(begun):
        return whole
    try:
        value = json.loads(whole)
    except (ValueError, RecursionError):
        return None
    texts = (json.dumps(value, ensure_ascii=False, separators=separators) for separators in SEPARATORS)
    return next((text for text in texts if text.startswith(begun)), None)
