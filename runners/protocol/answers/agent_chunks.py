"""The chunks that a streaming agent gets: stripped to what it asked for, and never to be taken back. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightningbus.runners.protocol.answers.choice_state import ChoiceState
from lightningbus.runners.protocol.answers.released_message import TEXTS, ReleasedMessage
from lightningbus.runners.protocol.request import ChatRequest

HIDDEN_FIELDS = frozenset({"weight_version", "engine_id", "prompt_token_ids", "usage"})
"""Fields of a chunk that agents get only if they ask."""
UNCERTAIN_FIELDS = frozenset({"tool_calls", *TEXTS})
"""Fields of a delta that wait until they are certain, where a request has tools."""


class AgentChunks:
    """One stream; its choices' states are those of the engine's."""

    def __init__(self, call: ChatRequest, functions: frozenset[str], choices: Mapping[int, ChoiceState]) -> None:
        """Begin a stream, whose messages may call ``functions``."""
        self._call, self._functions, self._choices = call, functions, choices
        self._released: dict[int, ReleasedMessage] = {}
        self._waiting: list[dict[str, Any]] = []
        """The chunks from the first finish reason on: by the end of a choice, parsers read its whole text."""

    def add(self, chunk: dict[str, Any], response_id: str) -> dict[str, Any] | None:
        """Return the agent's part of a chunk, which its choices have taken; None if it gets nothing now."""
        if self._functions and (self._waiting or any(part.get("finish_reason") for part in chunk.get("choices", ()))):
            self._waiting.append(chunk)
            return None
        return self._show(chunk, response_id)

    def end(self, response_id: str) -> Iterator[dict[str, Any]]:
        """Yield the agent's part of the chunks that waited for the end; each choice's message becomes the agent's."""
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            if (agent_chunk := self._show(chunk, response_id)) is not None:
                yield agent_chunk

    def is_begun_by_parsed(self) -> bool:
        """Return whether each choice's whole text was parsed as a message that begins with the agent's part."""
        return all(
            choice.parsed is not None and self._of(index).is_begun_by(choice.parsed)
            for index, choice in self._choices.items()
        )

    def _show(self, chunk: dict[str, Any], response_id: str) -> dict[str, Any] | None:
        call = self._call
        if not chunk.get("choices") and not call.wants_usage:
            return None
        visible = {k: v for k, v in chunk.items() if k not in HIDDEN_FIELDS}
        if call.wants_usage:
            visible["usage"] = chunk.get("usage")
        if call.wants_token_ids and "prompt_token_ids" in chunk:
            visible["prompt_token_ids"] = chunk["prompt_token_ids"]
        hidden = set() if call.wants_token_ids else {"token_ids", "prompt_token_ids"}
        if not call.wants_logprobs:
            hidden.add("logprobs")
        visible["choices"] = [{k: v for k, v in part.items() if k not in hidden} for part in chunk.get("choices", ())]
        for part in visible["choices"] if call.chat else ():
            delta = self._delta(part, response_id)
            part["delta"] = without_thoughts(delta) if call.hides_reasoning else delta
        return visible

    def _delta(self, part: dict[str, Any], response_id: str) -> dict[str, Any]:
        """Build a choice's visible delta, and its finish reason."""
        added = {k: v for k, v in (part.get("delta") or {}).items() if v is not None and k != "tool_calls"}
        if (choice := self._choices.get(part.get("index", 0))) is None:
            return added
        if not self._functions:
            if part.get("finish_reason") and (calls := choice.message.calls(response_id)):
                added["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
            return added
        added = {k: v for k, v in added.items() if k not in UNCERTAIN_FIELDS}
        released = self._of(part.get("index", 0))
        if not part.get("finish_reason"):
            return added | released.advance(choice.message)
        end = released.finish(choice.parsed, choice.message, response_id)
        choice.end(end.message, end.is_parsed)
        part["finish_reason"] = choice.finish_reason
        return added | end.delta

    def _of(self, index: int) -> ReleasedMessage:
        return self._released.setdefault(index, ReleasedMessage(self._functions))


def without_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message, or a delta, without what the model thought."""
    return {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
