"""Conversations that an agent begins anew with a summary of the old one, found by meaning. Pure.

An agent whose history grows asks the model for a summary, then begins a conversation with it. Nothing in a request says
so. It is seen where a conversation of the same instructions begins with text that the model has sampled before.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightningbus.schemas.trajectory.chat_messages import same_message

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
Shingle = tuple[str, ...]
INSTRUCTION_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages of a model call, and its answer."""

    messages: Sequence[Any]
    answer: Any


def find_summaries(exchanges: Sequence[Exchange], beginnings: Collection[int]) -> dict[int, int]:
    """Find, by index, the calls that begin a compacted conversation, and the calls that sampled their summaries.

    ``beginnings`` are the calls that extend no earlier call. Of those with one summary the first counts.
    """
    summaries: dict[int, int] = {}
    candidates: list[list[set[Shingle]]] = []
    for index in sorted(beginnings):
        shared = _shared_messages(exchanges, index)
        if shared is None:
            continue
        known = _shingles("\n".join(_new_texts(exchanges[index].messages, shared)))
        candidates += [list(_candidate_shingles(each.answer)) for each in exchanges[len(candidates) : index]]
        for earlier in reversed(range(index)):
            if any(_is_contained(shingles, known) for shingles in candidates[earlier]):
                if earlier not in summaries.values():
                    summaries[index] = earlier
                break
    return summaries


def count_compactions(num_calls: int, summaries: Collection[int]) -> list[int]:
    """Return, for each call, how many compacted conversations have begun by then: the number of its context window."""
    windows, count = [], 0
    for index in range(num_calls):
        count += index in summaries
        windows.append(count)
    return windows


def _shared_messages(exchanges: Sequence[Exchange], index: int) -> int | None:
    """Count the messages that a conversation shares with an earlier one of several turns; None: it replaces none."""
    messages, most = exchanges[index].messages, None
    for before in (exchange.messages for exchange in exchanges[:index]):
        if not any(_role(message) == "assistant" for message in before) or not _has_same_instructions(messages, before):
            continue
        shared = 0
        while shared < min(len(messages), len(before)) and same_message(messages[shared], before[shared]):
            shared += 1
        most = max(most or 0, shared)
    return most


def _has_same_instructions(messages: Sequence[Any], others: Sequence[Any]) -> bool:
    first, other = (conversation[0] if conversation else None for conversation in (messages, others))
    if _role(first) not in INSTRUCTION_ROLES:
        return _role(other) not in INSTRUCTION_ROLES
    return same_message(first, other)


def _new_texts(messages: Sequence[Any], num_shared: int) -> Iterator[str]:
    """Yield the texts at the beginning of a conversation that are neither shared nor the model's or a tool's."""
    for message in messages[num_shared : num_shared + MAX_MESSAGES]:
        if _role(message) not in ("assistant", "tool"):
            yield _text(message)


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


def _is_contained(shingles: Collection[Shingle], known: Collection[Shingle]) -> bool:
    return sum(shingle in known for shingle in shingles) >= MIN_SHARE * len(shingles)


def _candidate_shingles(answer: Any) -> Iterator[set[Shingle]]:
    for text in _candidates(answer):
        if shingles := _shingles(text):
            yield shingles


def _shingles(text: str) -> set[Shingle]:
    words = [word.lower() for word in WORD.findall(text)]
    return {tuple(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1)}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
