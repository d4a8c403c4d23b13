"""Conversations that an agent begins anew with a summary of the old one, found by meaning. Pure.

An agent whose history grows asks the model for a summary, then begins a conversation with it. Nothing in a request says
so. It is seen where a conversation of the same instructions begins with text that the model has sampled before. That
text is the agent's, or the answer to a question that nobody asked.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from lightningbus.schemas.trajectory.chat_messages import digest_prefixes

SHINGLE_WORDS = 5
"""Words of the pieces by which texts are compared; a shorter answer is found in other texts by chance."""
MIN_SHARE = 0.8
"""Share of a summary's pieces that its conversation begins with; agents change marks and white space around them."""
MAX_MESSAGES = 16
"""Messages at the beginning of a conversation in which a summary is looked for."""
WORD = re.compile(r"\w+")
TAG = re.compile(r"<(/?)(\w{1,64})>")
MAX_TAGGED = 16
"""Most texts in tags that are looked at in an answer."""
INSTRUCTION_ROLES = ("system", "developer")
Shingles = set[tuple[str, ...]]
"""Pieces of a text."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages of a model call, and its answer."""

    messages: Sequence[Any]
    answer: Any


@dataclass(frozen=True, slots=True)
class _Answer:
    """An earlier answer, and where it stood."""

    candidates: list[Shingles]
    instruction: bytes
    position: int
    """Number of messages before it."""

    def is_taken_over(self, text: Shingles, unasked: Iterable[tuple[int, Shingles]], instruction: bytes) -> bool:
        """Return whether a conversation has it in the agent's ``text``, or among ``unasked`` answers by position.

        A turn of the same conversation, with an edited question, has its own position.
        """
        return _is_contained(self.candidates, text) or any(
            (instruction != self.instruction or at < self.position) and _is_contained(self.candidates, answer)
            for at, answer in unasked
        )


def find_summaries(exchanges: Sequence[Exchange], beginnings: Collection[int]) -> dict[int, int]:
    """Find, by index, the calls that begin a compacted conversation, and the calls that sampled their summaries.

    ``beginnings`` are the calls that may begin one: those that extend no call, or one that another extends already. Of
    those with one summary the first counts.
    """
    summaries: dict[int, int] = {}
    prefixes, instructions = set[bytes](), set[bytes]()  # of earlier conversations of several turns
    questions = set[bytes]()
    earlier: list[_Answer] = []
    for index, exchange in enumerate(exchanges):
        messages = exchange.messages
        digests = list(digest_prefixes(messages))
        instruction = digests[0] if digests and _role(messages[0]) in INSTRUCTION_ROLES else b""
        if index in beginnings and instruction in instructions:
            num_shared = next((at for at, digest in enumerate(digests) if digest not in prefixes), len(digests))
            text = _shingles("\n".join(_new_texts(messages, num_shared)))
            unasked = [(at, _shingles(_text(messages[at]))) for at in _find_unasked(messages, num_shared, questions)]
            sources = (at for at in reversed(range(index)) if earlier[at].is_taken_over(text, unasked, instruction))
            source = next(sources, None)
            if source is not None and source not in summaries.values():
                summaries[index] = source
        if any(_role(message) == "assistant" for message in messages):
            prefixes.update(digests)
            instructions.add(instruction)
        questions.update(digest_prefixes(messages[-1:]))
        candidates = [_shingles(text) for text in _candidates(exchange.answer)]
        earlier.append(_Answer(candidates, instruction, len(messages)))
    return summaries


def count_compactions(num_calls: int, summaries: Collection[int]) -> list[int]:
    """Return, for each call, how many compacted conversations have begun by then: the number of its context window."""
    windows, count = [], 0
    for index in range(num_calls):
        count += index in summaries
        windows.append(count)
    return windows


def _new_texts(messages: Sequence[Any], num_shared: int) -> Iterator[str]:
    """Yield the texts at the beginning of a conversation that are neither shared nor the model's or a tool's."""
    for message in messages[num_shared : num_shared + MAX_MESSAGES]:
        if _role(message) not in ("assistant", "tool"):
            yield _text(message)


def _find_unasked(messages: Sequence[Any], num_shared: int, questions: Set[bytes]) -> Iterator[int]:
    """Yield where answers of the model follow a question of the user's that the model was never asked."""
    for at in range(max(num_shared, 1), min(num_shared + MAX_MESSAGES, len(messages))):
        is_answer = (_role(messages[at - 1]), _role(messages[at])) == ("user", "assistant")
        if is_answer and questions.isdisjoint(digest_prefixes(messages[at - 1 : at])):
            yield at


def _candidates(answer: Any) -> Iterator[str]:
    """Yield what an agent may take over of an answer: all of its text, or what stands in a tag such as ``summary``."""
    text, num_tagged = _text(answer), 0
    yield text
    opened: dict[str, int] = {}
    for tag in TAG.finditer(text):
        if not tag[1]:
            opened.setdefault(tag[2], tag.end())
        elif (start := opened.pop(tag[2], None)) is not None and num_tagged < MAX_TAGGED:
            num_tagged += 1
            yield text[start : tag.start()]


def _is_contained(candidates: Iterable[Shingles], text: Shingles) -> bool:
    """Return whether a text has most of one of the candidates; one that is too short has no pieces."""
    return any(pieces and len(pieces & text) >= MIN_SHARE * len(pieces) for pieces in candidates)


def _shingles(text: str) -> Shingles:
    words = [word.lower() for word in WORD.findall(text)]
    return {tuple(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1)}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
