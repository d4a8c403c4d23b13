"""Token in, token out: a chat that goes on is sent as the tokens it was made of, and only what is new is rendered.

A chat template turns messages into text and a tokenizer turns text into tokens; what the model sampled need not come
back as the same tokens. Then the model is asked about something it never said, its cache is of no use, and training has
two contexts where there was one. Pure.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.trajectory.chat_messages import without_empty

_ENCODER = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A conversation up to an answer, and the tokens all of that was."""

    num_messages: int
    """What was asked, and the answer as the agent saw it."""
    token_ids: "array[int]"

    @property
    def tokens(self) -> list[int]:
        """The tokens of prompt and answer."""
        return self.token_ids.tolist()


@dataclass(slots=True)
class TokenHistory:
    """The answers of one attempt so far."""

    turns: dict[bytes, ChatTurn] = field(default_factory=dict)
    """By the digest of model and messages: finding one costs what the messages are long, however many there are."""
    responses: dict[str, list[Any]] = field(default_factory=dict)
    """Messages up to and with each response of the Responses API, by its id."""

    def add(self, call: ChatRequest, answer: dict[str, Any], tokens: list[int]) -> None:
        """An answer to a chat that ended by itself; ``tokens`` are its prompt's and its own."""
        messages = [*call.body["messages"], answer]
        *_, digest = _digests(call.model, messages)
        self.turns[digest] = ChatTurn(len(messages), array("I", tokens))

    def longest_prefix(self, call: ChatRequest) -> ChatTurn | None:
        """The longest conversation that this call goes on with; None: it begins one, or changes what was said."""
        if not self.turns:
            return None
        before_last = call.body["messages"][:-1]
        turns = [turn for digest in _digests(call.model, before_last) if (turn := self.turns.get(digest)) is not None]
        return turns[-1] if turns else None


def has_reasoning(messages: Sequence[Any]) -> bool:
    """Whether an engine's parser told thoughts from what was said: it does so on the chat route only."""
    known = [message for message in messages if isinstance(message, dict)]
    return any(message.get("reasoning") or message.get("reasoning_content") for message in known)


def _digests(model: str, messages: Sequence[Any]) -> Iterator[bytes]:
    """Of the conversation up to each message."""
    digest = model.encode(errors="surrogatepass")
    for message in messages:
        digest = blake2b(digest + _canonical(without_empty(message)), digest_size=16).digest()
        yield digest


def _canonical(message: Any) -> bytes:
    """JSON in which the order of fields does not matter."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(message, sort_keys=True).encode()


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
