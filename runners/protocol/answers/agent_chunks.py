"""The chunks that a streaming agent gets: stripped to what it asked for. Pure."""

from collections.abc import Mapping
from typing import Any

from lightningbus.runners.protocol.answers.choice_state import ChoiceState, name_tokens
from lightningbus.runners.protocol.answers.engine_errors import InvalidEngineOutputError
from lightningbus.runners.protocol.answers.released_message import TEXTS, ReleasedMessage
from lightningbus.runners.protocol.request import ChatRequest

HIDDEN_FIELDS = frozenset({"weight_version", "engine_id", "prompt_token_ids", "usage"})
"""Fields of a chunk that agents get only if they ask."""
RELEASED_FIELDS = frozenset({"tool_calls", *TEXTS})
"""Fields of a delta that `ReleasedMessage` builds."""


class AgentChunks:
    """One stream; ``choices`` are the states of its choices."""

    def __init__(self, call: ChatRequest, choices: Mapping[int, ChoiceState], streams_calls: bool) -> None:
        """Begin a stream, with tool calls as they come (then it has one choice) or once all of them are complete."""
        self._call, self._choices = call, choices
        self._released = ReleasedMessage() if streams_calls else None

    def show(self, chunk: dict[str, Any], response_id: str) -> list[dict[str, Any]]:
        """Return the agent's part of a chunk that the choices have taken, in at most two chunks."""
        call = self._call
        if not chunk.get("choices") and not call.wants_usage:
            return []
        visible = {k: v for k, v in chunk.items() if k not in HIDDEN_FIELDS}
        if call.wants_usage:
            visible["usage"] = chunk.get("usage")
        if call.wants_token_ids and "prompt_token_ids" in chunk:
            visible["prompt_token_ids"] = chunk["prompt_token_ids"]
        hidden = set() if call.wants_token_ids else {"token_ids", "prompt_token_ids"}
        if not call.wants_logprobs:
            hidden.add("logprobs")
        parts = chunk.get("choices", ())
        if call.names_tokens_by_id:
            parts = [
                {**part, "logprobs": name_tokens(part.get("logprobs") or {}, part.get("token_ids") or ())}
                for part in parts
            ]
        visible["choices"] = [{k: v for k, v in part.items() if k not in hidden} for part in parts]
        before: list[dict[str, Any]] = []
        for part in visible["choices"] if call.chat else ():
            *first, last = self._deltas(part, response_id)
            index = part.get("index", 0)
            before += [
                {**visible, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
                for delta in map(self._visible, first)
            ]
            part["delta"] = self._visible(last)
        return [*before, visible]

    def fits(self, message: dict[str, Any]) -> bool:
        """Return whether a message begins with what the agent has of the streamed one."""
        return self._released is None or self._released.end(message) is not None

    def _deltas(self, part: dict[str, Any], response_id: str) -> list[dict[str, Any]]:
        """Return the deltas of a choice; the end of a released message is also taken for the record."""
        added = {k: v for k, v in (part.get("delta") or {}).items() if v is not None and k != "tool_calls"}
        choice = self._choices.get(part.get("index", 0))
        if choice is None:
            return [added]
        if self._released is None:
            if part.get("finish_reason") and (calls := choice.message.calls(response_id)):
                added["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
            return [added]
        added = {k: v for k, v in added.items() if k not in RELEASED_FIELDS}
        if not part.get("finish_reason"):
            return [added | self._released.advance(choice.message)]
        end = self._released.end(choice.whole_message(response_id))
        if end is None:
            raise InvalidEngineOutputError("the end of the answer does not follow its beginning")
        choice.parsed, part["finish_reason"] = end.message, choice.finish_reason
        return [added | end.deltas[0], *end.deltas[1:]]

    def _visible(self, delta: dict[str, Any]) -> dict[str, Any]:
        return without_thoughts(delta) if self._call.hides_reasoning else delta


def without_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message, or a delta, without what the model thought."""
    return {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
