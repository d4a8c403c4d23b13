"""Token in, token out: a continuing chat is sent as its recorded tokens, and only the new part is rendered.

A chat template turns messages into text and a tokenizer turns text into tokens; sampled tokens need not come back as
the same tokens. Then the model continues a text that it never generated, its cache is of no use, and training has two
contexts instead of one. Pure.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from string import whitespace
from typing import Any

from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.trajectory.chat_messages import digest_prefixes, encode_sorted

SPACE = whitespace + "ĠĊĉč▁"
"""Space as it is, and in the alphabets of byte-level and SentencePiece tokenizers."""
BYTES_OF_SPACE = {"<0x09>": "\t", "<0x0A>": "\n", "<0x0D>": "\r", "<0x20>": " "}
"""Tokens of single bytes, by which SentencePiece writes what is not in its vocabulary."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A conversation up to an answer, and the tokens all of that was."""

    num_messages: int
    """Number of messages: the request's, and the answer as the agent saw it."""
    token_ids: "array[int]"
    rendering: bytes
    """Digest of the prompt as the template rendered it: earlier answers may be other tokens in it."""

    @property
    def tokens(self) -> list[int]:
        """The tokens of prompt and answer."""
        return self.token_ids.tolist()


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A text as tokens."""

    token_ids: list[int]
    text: str = ""
    """The tokens' own strings, joined: the text in the tokenizer's alphabet, in whatever way it was divided."""


@dataclass(frozen=True, slots=True)
class Renderings:
    """The texts that say whether a template left a conversation as it was asked."""

    prompt: Tokenized
    """The messages before the answer, and the start of an answer."""
    answer: Tokenized
    """The answer's content alone."""
    thought: Tokenized
    """The answer's thought alone."""
    turn: Tokenized
    """The messages up to the answer."""
    turn_without_thought: Tokenized
    """The messages up to the answer, without its thought; empty: it has none."""
    chat: Tokenized
    """All messages, and the start of an answer; without text."""


class Change(StrEnum):
    """Part of a conversation that was not rendered as it was sampled."""

    PROMPT = "prompt"
    """The template renders what was asked in another way: it moved the system message, or the date changed."""
    ANSWER = "answer"
    """The template drops or rewrites what was answered as the chat goes on, or does not end it as the model did."""
    UNKNOWN = "unknown"
    """The node gives no tokens or no strings of them."""


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

        An API may show arguments in another form than the model's, and have them sent back in it. An agent may fill in
        defaults, such as ``"replace_all": false``, when it restores its history.
        """
        sampled = self.arguments.get(call_id) if isinstance(call_id, str) else None
        return sampled if sampled is not None and _is_filled_in(show(sampled), sent_back) else None

    def add(self, call: ChatRequest, answer: dict[str, Any], tokens: list[int], rendered: Sequence[int]) -> None:
        """Add a completed answer to a chat.

        ``tokens`` are those of its prompt and its own, ``rendered`` is the prompt as the template renders it.
        """
        messages = [*call.body["messages"], answer]
        *_, digest = _digests(call, messages)
        self.turns[digest] = ChatTurn(len(messages), array("I", tokens), _digest_tokens(rendered))

    def longest_prefix(self, call: ChatRequest) -> ChatTurn | None:
        """Find the longest conversation that this call continues; None: it begins one, or changes earlier messages."""
        if not self.turns:
            return None
        before_last = call.body["messages"][:-1]
        turns = [turn for digest in _digests(call, before_last) if (turn := self.turns.get(digest)) is not None]
        return turns[-1] if turns else None


def _is_filled_in(original: Any, sent_back: Any) -> bool:
    """Return whether arguments are the original ones, beside some of no value."""
    if not isinstance(original, dict) or not isinstance(sent_back, dict):
        return bool(original == sent_back)
    return {name: value for name, value in sent_back.items() if name in original or value} == original


def _digests(call: ChatRequest, messages: Sequence[Any]) -> Iterator[bytes]:
    """Return the digest of the conversation up to each message.

    It begins with all else that a template renders: with other tools or documents it is another conversation.
    """
    before = call.model.encode(errors="surrogatepass") + encode_sorted(call.template_fields())
    return digest_prefixes(messages, before)


def find_change(turn: ChatTurn, renderings: Renderings) -> Change | None:
    """Find out whether a template renders a conversation up to its last answer as it was asked and answered.

    Space around thought and content does not count, nor do the template's marks around a thought. Texts are compared,
    because tokens may join where an answer begins.
    """
    prompt, whole, parts = renderings.prompt, renderings.turn, (renderings.thought, renderings.answer)
    if not prompt.text or not whole.text or any(bool(part.token_ids) != bool(part.text) for part in parts):
        return Change.UNKNOWN
    if _digest_tokens(prompt.token_ids) != turn.rendering or not whole.text.startswith(prompt.text):
        return Change.PROMPT
    thought, content = (_strip(part.text) for part in parts)
    answer = _strip(whole.text[len(prompt.text) :])
    if not thought:
        return None if answer.startswith(content) else Change.ANSWER
    is_dropped = whole.token_ids == renderings.turn_without_thought.token_ids
    _, is_found, rest = answer.partition(thought)
    return None if is_found and content in rest and not is_dropped else Change.ANSWER


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


def _digest_tokens(tokens: Sequence[int]) -> bytes:
    return blake2b(array("I", tokens), digest_size=16).digest()


def _strip(text: str) -> str:
    for token, space in BYTES_OF_SPACE.items():
        text = text.replace(token, space)
    return text.strip(SPACE)
