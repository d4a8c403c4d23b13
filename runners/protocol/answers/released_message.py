"""The part of a streamed message that an agent has, and that no end of the message changes. Pure.

Space waits for what follows it, because parsers drop it in different ways. A call begins once its id, its name and the
first of its arguments have come, and grows as far as its arguments are certain (`JsonPrefix`). All else comes with the
end of the message, as the engine's parsers read the whole text.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from lightningbus.runners.protocol.answers.joined_message import JoinedMessage, ToolCall
from lightningbus.runners.protocol.answers.json_prefix import JsonPrefix
from lightningbus.schemas.text import replace_surrogates

TEXTS = ("content", "reasoning", "reasoning_content")


@dataclass(slots=True)
class _ReleasedCall:
    """A call that the agent has some of."""

    call: ToolCall
    id: str
    name: str
    arguments: JsonPrefix = field(default_factory=JsonPrefix)
    num_fed: int = 0

    def advance(self) -> str:
        """Return what may follow of its arguments."""
        added = self.call.arguments[self.num_fed :]
        self.num_fed += len(added)
        return self.arguments.feed(added)


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The rest of a message, and the whole of it."""

    delta: dict[str, Any]
    message: dict[str, Any]
    is_parsed: bool
    """Whether its calls are those that the engine's parsers read in the whole text."""


class ReleasedMessage:
    """One choice's message, as far as a streaming agent has it."""

    def __init__(self, functions: Collection[str]) -> None:
        """Begin a message that may call ``functions``."""
        self._functions = functions
        self._texts = dict.fromkeys(TEXTS, "")
        self._calls: list[_ReleasedCall] = []

    def advance(self, message: JoinedMessage) -> dict[str, Any]:
        """Return the delta by which the agent's part of ``message`` may grow."""
        delta: dict[str, Any] = {}
        is_text = not self._calls  # parsers drop what follows a call, or put it before the call
        pieces = list(self._advance_calls(message.ordered()))
        for name in TEXTS if is_text else ():
            whole = message.text(name)
            text = whole if pieces and not whole.isspace() else _stable(whole)
            if added := text[len(self._texts[name]) :]:
                delta[name], self._texts[name] = added, text
        return {**delta, "tool_calls": pieces} if pieces else delta

    def _advance_calls(self, calls: list[ToolCall]) -> Iterator[dict[str, Any]]:
        """Yield a piece of each call that grows: one call after the other, as APIs of blocks have them."""
        for position, call in enumerate(calls):
            is_new = position == len(self._calls)
            if is_new and not (call.id and call.name in self._functions):
                return
            released = _ReleasedCall(call, call.id, call.name) if is_new else self._calls[position]
            if released.call is not call:
                return
            added = released.advance()
            if is_new and added:
                self._calls.append(released)
                head = {"index": position, "id": call.id, "type": "function", **call.others}
                yield {**head, "function": {"name": call.name, "arguments": added}}
            elif added:
                yield {"index": position, "function": {"arguments": added}}
            if not released.arguments.is_complete:
                return

    def is_begun_by(self, message: dict[str, Any]) -> bool:
        """Return whether the calls that the agent has are the first of a message."""
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return len(calls) >= len(self._calls) and all(
            call["name"] == released.name and call["arguments"].startswith(released.arguments.prefix)
            for call, released in zip(calls, self._calls, strict=False)
        )

    def finish(self, parsed: dict[str, Any] | None, joined: JoinedMessage, response_id: str) -> MessageEnd:
        """End the message as ``parsed`` from the whole text, else as ``joined`` from deltas.

        Where the parsed message does not begin with the calls that the agent has, as after one that turned out
        malformed, it ends as the joined one.
        """
        streamed = joined.whole(response_id)
        is_parsed = parsed is not None and self.is_begun_by(parsed)
        message: dict[str, Any] = {**(parsed if parsed is not None and is_parsed else streamed)}
        delta: dict[str, Any] = {}
        for name, text in self._texts.items():
            candidates = (each.get(name) or "" for each in (message, streamed))
            whole = next((each for each in candidates if _goes_on(each, text)), text)
            if whole or name in message:
                message[name] = whole or message.get(name)
            if rest := whole[len(text) :]:
                delta[name] = rest
        calls = message.pop("tool_calls", None) if is_parsed else self._in_order(joined, streamed)
        if calls:
            begun = len(self._calls)
            message["tool_calls"] = [
                *({**call, "id": each.id} for each, call in zip(self._calls, calls, strict=False)), *calls[begun:]
            ]  # fmt: skip
            delta["tool_calls"] = list(self._rest_of(message["tool_calls"]))
        return MessageEnd(delta, message, is_parsed)

    def _in_order(self, joined: JoinedMessage, streamed: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the joined calls, those that the agent has some of first."""
        begun = {id(released.call): position for position, released in enumerate(self._calls)}
        pairs = zip(joined.ordered(), streamed.get("tool_calls") or (), strict=False)
        return [call for _, call in sorted(pairs, key=lambda pair: begun.get(id(pair[0]), len(begun)))]

    def _rest_of(self, calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for position, call in enumerate(calls):
            if position >= len(self._calls):
                yield {"index": position, **call}
            elif rest := call["function"]["arguments"][len(self._calls[position].arguments.prefix) :]:
                yield {"index": position, "function": {"arguments": rest}}


def _stable(text: str) -> str:
    """Return a text without what may change at its end: space, and half of a character."""
    text = text.rstrip()
    return replace_surrogates(text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text)


def _goes_on(whole: Any, begun: str) -> bool:
    return whole.startswith(begun) if isinstance(whole, str) else not begun
