"""Token in, token out: a continuing chat is sent as its recorded tokens, and only the new part is rendered.

A chat template turns messages into text and a tokenizer turns text into tokens; sampled tokens need not come back as
the same tokens. Then the model continues a text that it never generated, its cache is of no use, and training has two
contexts instead of one. Pure.
"""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.trajectory.chat_messages import canonical_message

_ENCODER = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A conversation up to an answer, and the tokens all of that was."""

    num_messages: int
    """Number of messages: the request's, and the answer as the agent saw it."""
    token_ids: "array[int]"

    @property
    def tokens(self) -> list[int]:
        """The tokens of prompt and answer."""
        return self.token_ids.tolist()


@dataclass(slots=True)
class TokenHistory:
    """The answers of one attempt so far."""

    turns: dict[bytes, ChatTurn] = field(default_factory=dict)
    """Turns by the digest of all that is rendered, so that a lookup costs only the length of the messages."""
    responses: dict[str, list[Any]] = field(default_factory=dict)
    """Messages up to and with each response of the Responses API, by its id."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Output items of those responses, by their id."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Arguments of tool calls as they were sampled, by the call's id."""

    def add_calls(self, answer: dict[str, Any]) -> None:
        """Remember the arguments of an answer's tool calls."""
        for call in answer.get("tool_calls") or ():
            self.arguments[str(call.get("id"))] = str((call.get("function") or {}).get("arguments") or "")

    def sampled_arguments(self, call_id: Any, sent_back: Any, show: Callable[[str], Any]) -> str | None:
        """Return a call's arguments as sampled, where ``sent_back`` is what ``show`` makes of them; None otherwise.

        An API may show arguments in another form than the model's, and have them sent back in it.
        """
        sampled = self.arguments.get(call_id) if isinstance(call_id, str) else None
        return sampled if sampled is not None and show(sampled) == sent_back else None

    def add(self, call: ChatRequest, answer: dict[str, Any], tokens: list[int]) -> None:
        """Add a completed answer to a chat; ``tokens`` are those of its prompt and its own."""
        messages = [*call.body["messages"], answer]
        *_, digest = _digests(call, messages)
        self.turns[digest] = ChatTurn(len(messages), array("I", tokens))

    def longest_prefix(self, call: ChatRequest) -> ChatTurn | None:
        """Find the longest conversation that this call continues; None: it begins one, or changes earlier messages."""
        if not self.turns:
            return None
        before_last = call.body["messages"][:-1]
        turns = [turn for digest in _digests(call, before_last) if (turn := self.turns.get(digest)) is not None]
        return turns[-1] if turns else None


def has_reasoning(messages: Sequence[Any]) -> bool:
    """Return whether an engine's parser separated reasoning from content: it does so on the chat route only."""
    known = [message for message in messages if isinstance(message, dict)]
    return any(message.get("reasoning") or message.get("reasoning_content") for message in known)


def _digests(call: ChatRequest, messages: Sequence[Any]) -> Iterator[bytes]:
    """Yield the digest of the conversation up to each message.

    It begins with all else that a template renders: with other tools or documents it is another conversation.
    """
    digest = call.model.encode(errors="surrogatepass") + _canonical(call.template_fields())
    for message in messages:
        digest = blake2b(digest + _canonical(canonical_message(message)), digest_size=16).digest()
        yield digest


def _canonical(message: Any) -> bytes:
    """Encode JSON in which the order of fields does not matter."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(message, sort_keys=True).encode()


def splice_prompt(sampled: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Build the prompt of a continuing conversation: the sampled tokens, then the rendered tokens after them.

    ``sampled`` are prompt and answer as sampled, the answer's end token being the last; ``old`` is the template's
    rendering of the same messages, ``new`` that of all messages, both tokenized. None where the template changes its
    earlier rendering, or does not end an answer as the model did: then only a new rendering is right.
    """
    if list(new[: len(old)]) != list(old) or not sampled:
        return None
    end = sampled[-1]
    after = next((index + 1 for index in reversed(range(len(old))) if old[index] == end), None)
    if after is None or sampled.count(end) != old.count(end):
        return None
    return [*sampled, *new[after:]]
