"""Token in, token out: a chat that goes on is sent as the tokens it was made of, and only what is new is rendered.

A chat template turns messages into text and a tokenizer turns text into tokens; what the model sampled need not come
back as the same tokens. Then the model is asked about something it never said, its cache is of no use, and training has
two contexts where there was one. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runners.protocol.request import ChatRequest
from schemas.trajectory.chat_messages import extends


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Messages up to an answer, and the tokens all of that was."""

    model: str
    messages: list[Any]
    """What was asked, and the answer as the agent saw it."""
    tokens: list[int]

    @property
    def has_reasoning(self) -> bool:
        """Whether an engine's parser told thoughts from what was said: it does so on the chat route only."""
        messages = [message for message in self.messages if isinstance(message, dict)]
        return any(message.get("reasoning") or message.get("reasoning_content") for message in messages)


@dataclass(slots=True)
class TokenHistory:
    """The answers of one attempt so far."""

    turns: list[ChatTurn] = field(default_factory=list)
    responses: dict[str, list[Any]] = field(default_factory=dict)
    """Messages up to and with each response of the Responses API, by its id."""

    def add(self, call: ChatRequest, answer: dict[str, Any], tokens: list[int]) -> None:
        """An answer to a chat that ended by itself; ``tokens`` are its prompt's and its own."""
        self.turns.append(ChatTurn(call.model, [*call.body["messages"], answer], tokens))

    def longest_prefix(self, call: ChatRequest) -> ChatTurn | None:
        """The longest conversation that this call goes on with; None: it begins one, or changes what was said."""
        messages = call.body["messages"]
        fitting = [turn for turn in self.turns if turn.model == call.model and extends(messages, turn.messages)]
        return max(fitting, key=lambda turn: len(turn.tokens), default=None)


def splice_prompt(sampled: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """The prompt for a conversation that goes on: the tokens held, and of the rendering what comes after them.

    ``held`` are prompt and answer as sampled, the answer's end token being the last; ``old`` is how the template
    renders the same messages, ``new`` how it renders all, each as the tokenizer has it. None where the template does
    not keep what it rendered before, or does not end an answer as the model did: then only a new rendering is right.
    """
    if list(new[: len(old)]) != list(old) or not sampled:
        return None
    end = sampled[-1]
    after = next((index + 1 for index in reversed(range(len(old))) if old[index] == end), None)
    if after is None or sampled.count(end) != old.count(end):
        return None
    return [*sampled, *new[after:]]
